//! Convolution by cuDNN, on the caller's stream (feature `cuda`).
//!
//! cuDNN is opened at run time if it is installed. The algorithm and its workspace are chosen once
//! for a shape and kept for the life of the process. Only algorithms that give the same bits every
//! time are used. Products of `f32` are in TF32, as in PyTorch, unless [`set_strict`] or
//! `VMF_STRICT_F32=1` in the environment asks for single precision. Tensors are NCHW and weights (M, C / groups, kh, kw).

use super::ConvShape;
use super::cudnn_library::{Algorithm, Functions, Opaque, library};
use crate::bn_noise::cuda::{CudaElement, Error, check};
use crate::bn_noise::launches::Storage;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Which of the three products of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// y from x and w.
    Forward,
    /// dx from w and dy.
    InputGradient,
    /// dw from x and dy.
    WeightGradient,
}

/// The largest workspace that an algorithm may want.
const LARGEST_WORKSPACE: usize = 1 << 30;

/// `CUDNN_CROSS_CORRELATION`, what networks call a convolution.
const CROSS_CORRELATION: c_int = 1;
/// `CUDNN_TENSOR_NCHW`.
const NCHW: c_int = 0;
/// `CUDNN_DATA_FLOAT`, the type that sums are in.
const FLOAT: c_int = 0;
/// `CUDNN_DEFAULT_MATH`: TF32 for `f32` where the device has it.
const DEFAULT_MATH: c_int = 0;
/// `CUDNN_FMA_MATH`: single precision for `f32`.
const FMA_MATH: c_int = 3;

/// Also set by the environment, `VMF_STRICT_F32=1`.
static STRICT: LazyLock<AtomicBool> = LazyLock::new(|| {
    AtomicBool::new(std::env::var("VMF_STRICT_F32").is_ok_and(|value| value == "1"))
});

/// Whether products of `f32` are in single precision instead of TF32, for convolutions from now on.
pub fn set_strict(strict: bool) {
    STRICT.store(strict, Ordering::Relaxed);
}

/// Whether [`set_strict`] asked for single precision.
pub fn is_strict() -> bool {
    STRICT.load(Ordering::Relaxed)
}

/// Nothing if cuDNN is used, or why it is not.
pub fn unavailable() -> Option<&'static str> {
    library().err()
}

/// Computes one of the three products: `first` and `second` are the tensors that [`Direction`]
/// names. cuDNN must be [available](unavailable).
pub fn convolve<T: CudaElement>(
    stream: &Arc<CudaStream>,
    shape: &ConvShape,
    direction: Direction,
    [first, second]: [&impl DevicePtr<T>; 2],
    to: &mut impl DevicePtrMut<T>,
) -> Result<(), Error> {
    let functions = library().map_err(|reason| failed("opening cuDNN", reason))?;
    let (x, w, y) = (shape.input_len(), weights_len(shape), shape.output_len());
    let lengths = match direction {
        Direction::Forward => [x, w, y],
        Direction::InputGradient => [w, y, x],
        Direction::WeightGradient => [x, y, w],
    };
    check(stream, "the first operand", first, lengths[0])?;
    check(stream, "the second operand", second, lengths[1])?;
    check(stream, "the result", to, lengths[2])?;

    static CONTEXTS: Mutex<Option<HashMap<usize, Context>>> = Mutex::new(None);
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let contexts = contexts.get_or_insert_default();
    let key = stream.context().cu_ctx() as usize;
    stream.context().bind_to_thread()?;
    let context = match contexts.entry(key) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert(Context::new(functions)?),
    };
    let plan = context.plan(functions, shape, direction, T::STORAGE)?;
    context.reserve(stream, plan.workspace)?;
    let status = |what, status| ok(functions, what, status);
    // SAFETY: the handle belongs to this context, and the stream lives as long as its owner.
    status("cudnnSetStream", unsafe {
        (functions.set_stream)(context.handle, stream.cu_stream().cast())
    })?;
    let (first, _first) = first.device_ptr(stream);
    let (second, _second) = second.device_ptr(stream);
    let (to, _to) = to.device_ptr_mut(stream);
    let workspace = context.workspace.as_mut().map(|buffer| buffer.device_ptr_mut(stream));
    let workspace = workspace.as_ref().map_or(0, |(pointer, _)| *pointer);
    let (name, call) = match direction {
        Direction::Forward => ("cudnnConvolutionForward", functions.forward),
        Direction::InputGradient => ("cudnnConvolutionBackwardData", functions.input_gradient),
        Direction::WeightGradient => ("cudnnConvolutionBackwardFilter", functions.weight_gradient),
    };
    let [of_first, of_second, of_result] = plan.descriptors;
    let (one, zero) = (1.0, 0.0);
    // SAFETY: the descriptors describe the buffers, whose lengths were compared with the shape, and
    // the workspace has the size that cuDNN asked for. The numbers are read during the call.
    status(name, unsafe {
        call(
            context.handle,
            &one,
            of_first,
            first,
            of_second,
            second,
            plan.convolution,
            plan.algorithm,
            workspace,
            plan.workspace,
            &zero,
            of_result,
            to,
        )
    })
}

fn weights_len(shape: &ConvShape) -> usize {
    let [height, width] = shape.kernel;
    shape.out_channels * (shape.in_channels / shape.groups) * height * width
}

fn failed(what: &str, reason: &str) -> Error {
    Error::Cudnn { what: what.into(), reason: reason.into() }
}

fn ok(functions: &Functions, what: &str, status: c_int) -> Result<(), Error> {
    match status {
        0 => Ok(()),
        _ => Err(failed(what, &functions.message(status))),
    }
}

/// What cuDNN keeps for a CUDA context.
struct Context {
    handle: Opaque,
    plans: HashMap<(ConvShape, Direction, Storage, bool), Plan>,
    /// One for all convolutions: those of a stream run one after the other.
    workspace: Option<CudaSlice<u8>>,
}

// SAFETY: a handle may be used by any thread, one at a time, which the mutex around it ensures.
unsafe impl Send for Context {}

/// How a convolution is computed.
#[derive(Clone, Copy)]
struct Plan {
    /// Of the two operands and the result.
    descriptors: [Opaque; 3],
    convolution: Opaque,
    algorithm: c_int,
    workspace: usize,
}

impl Context {
    fn new(functions: &Functions) -> Result<Self, Error> {
        let mut handle = null_mut();
        // SAFETY: the pointer is valid for a write.
        ok(functions, "cudnnCreate", unsafe { (functions.create)(&mut handle) })?;
        Ok(Self { handle, plans: HashMap::new(), workspace: None })
    }

    fn reserve(&mut self, stream: &Arc<CudaStream>, bytes: usize) -> Result<(), Error> {
        if self.workspace.as_ref().map_or(0, |buffer| buffer.len()) < bytes {
            self.workspace = None;
            // SAFETY: cuDNN writes what it reads of its workspace.
            self.workspace = Some(unsafe { stream.alloc(bytes) }?);
        }
        Ok(())
    }

    fn plan(
        &mut self,
        functions: &Functions,
        shape: &ConvShape,
        direction: Direction,
        storage: Storage,
    ) -> Result<Plan, Error> {
        let key = (*shape, direction, storage, is_strict());
        if let Some(plan) = self.plans.get(&key) {
            return Ok(*plan);
        }
        let plan = make_plan(functions, self.handle, shape, direction, storage)?;
        self.plans.insert(key, plan);
        Ok(plan)
    }
}

/// Describes the tensors and chooses the first algorithm that cuDNN recommends which fits.
fn make_plan(
    functions: &Functions,
    handle: Opaque,
    shape: &ConvShape,
    direction: Direction,
    storage: Storage,
) -> Result<Plan, Error> {
    let data_type = match storage {
        Storage::F32 => FLOAT,
        Storage::F16 => 2,
        Storage::Bf16 => 9,
    };
    let status = |what: &str, status: c_int| ok(functions, what, status);
    let size = |value: usize| {
        let requirement = "below 2^31 for cuDNN";
        let wrong =
            |_| crate::Error::Value { name: "shape", value: value.to_string(), requirement };
        c_int::try_from(value).map_err(wrong)
    };
    let sizes = |sizes: [usize; 4]| -> Result<[c_int; 4], Error> {
        Ok([size(sizes[0])?, size(sizes[1])?, size(sizes[2])?, size(sizes[3])?])
    };
    let tensor = |channels: usize, [height, width]: [usize; 2]| -> Result<Opaque, Error> {
        let [n, c, h, w] = sizes([shape.batch, channels, height, width])?;
        let mut made = null_mut();
        // SAFETY: the pointer is valid for a write, and the descriptor was just made.
        unsafe {
            status("cudnnCreateTensorDescriptor", (functions.create_tensor)(&mut made))?;
            let set = (functions.set_tensor)(made, NCHW, data_type, n, c, h, w);
            status("cudnnSetTensor4dDescriptor", set)?;
        }
        Ok(made)
    };
    let x = tensor(shape.in_channels, shape.input)?;
    let y = tensor(shape.out_channels, shape.output())?;
    let per_group = shape.in_channels / shape.groups;
    let [m, c, h, w] = sizes([shape.out_channels, per_group, shape.kernel[0], shape.kernel[1]])?;
    let [padding, stride, dilation, groups] =
        sizes([shape.padding, shape.stride, shape.dilation, shape.groups])?;
    let math = if is_strict() { FMA_MATH } else { DEFAULT_MATH };
    let (mut weight, mut convolution) = (null_mut(), null_mut());
    // SAFETY: the pointers are valid for a write, and the descriptors were just made.
    unsafe {
        status("cudnnCreateFilterDescriptor", (functions.create_filter)(&mut weight))?;
        let set = (functions.set_filter)(weight, data_type, NCHW, m, c, h, w);
        status("cudnnSetFilter4dDescriptor", set)?;
        let create = (functions.create_convolution)(&mut convolution);
        status("cudnnCreateConvolutionDescriptor", create)?;
        let set = (functions.set_convolution)(
            convolution,
            padding,
            padding,
            stride,
            stride,
            dilation,
            dilation,
            CROSS_CORRELATION,
            FLOAT,
        );
        status("cudnnSetConvolution2dDescriptor", set)?;
        let set = (functions.set_groups)(convolution, groups);
        status("cudnnSetConvolutionGroupCount", set)?;
        status("cudnnSetConvolutionMathType", (functions.set_math)(convolution, math))?;
    }
    let (descriptors, find, size_of) = match direction {
        Direction::Forward => ([x, weight, y], functions.find_forward, functions.size_forward),
        Direction::InputGradient => {
            ([weight, y, x], functions.find_input_gradient, functions.size_input_gradient)
        }
        Direction::WeightGradient => {
            ([x, y, weight], functions.find_weight_gradient, functions.size_weight_gradient)
        }
    };
    let [first, second, result] = descriptors;
    let (mut found, mut count) = ([Algorithm::default(); 16], 0);
    // SAFETY: there is room for as many algorithms as are asked for.
    status("choosing an algorithm", unsafe {
        let places = found.len() as c_int;
        find(handle, first, second, convolution, result, places, &mut count, found.as_mut_ptr())
    })?;
    let fits = |algorithm: &&Algorithm| {
        algorithm.status == 0
            && algorithm.determinism == 1
            && algorithm.workspace <= LARGEST_WORKSPACE
            && (!is_strict() || algorithm.math == FMA_MATH)
    };
    let Some(chosen) = found[..count.max(0) as usize].iter().find(fits) else {
        let reason = format!("{direction:?} of {shape:?} has no deterministic algorithm");
        return Err(failed("choosing an algorithm", &reason));
    };
    let mut workspace = 0;
    // SAFETY: the descriptors are those that the algorithm was chosen for.
    unsafe {
        status("cudnnSetConvolutionMathType", (functions.set_math)(convolution, chosen.math))?;
        let asked =
            size_of(handle, first, second, convolution, result, chosen.algorithm, &mut workspace);
        status("asking for the size of a workspace", asked)?;
    }
    Ok(Plan { descriptors, convolution, algorithm: chosen.algorithm, workspace })
}
