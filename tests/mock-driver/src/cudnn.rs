//! The part of cuDNN that computes convolutions, on the CPU.
//!
//! It checks what it is given: that descriptors are of the right kind and filled in, that their
//! sizes fit each other, that the algorithm is one that it offered for exactly this problem, that
//! the workspace has the size it asked for, and that all memory is where the descriptors say. It
//! offers algorithms that a careful program refuses: one that is not deterministic, one whose
//! workspace does not fit, and one that failed.
#![allow(clippy::too_many_arguments, reason = "the arguments are cuDNN's")]

use crate::Handle;
use crate::counts::{Count, count};
use crate::device;
use crate::element::Element;
use std::ffi::{c_char, c_int};

/// `CUDNN_STATUS_BAD_PARAM`.
const BAD_PARAMETER: c_int = 2000;

/// What a descriptor describes.
#[derive(Clone, Debug, PartialEq)]
enum Descriptor {
    Tensor(Option<(Element, [usize; 4])>),
    Filter(Option<(Element, [usize; 4])>),
    Convolution { padding: usize, stride: usize, dilation: usize, groups: usize, math: c_int },
    Handle { stream: usize },
}

fn status(what: &str, result: Result<(), String>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("mock cuDNN: {what}: {reason}");
            BAD_PARAMETER
        }
    }
}

/// # Safety
/// A pointer that is not null must be one that this module made.
unsafe fn at<'a>(handle: Handle) -> Result<&'a mut Descriptor, String> {
    // SAFETY: the caller promises it.
    unsafe { handle.cast::<Descriptor>().as_mut() }.ok_or_else(|| "a null descriptor".into())
}

fn element(data_type: c_int) -> Result<Element, String> {
    match data_type {
        0 => Ok(Element::Single),
        2 => Ok(Element::Half),
        9 => Ok(Element::Bfloat),
        _ => Err(format!("the data type {data_type}")),
    }
}

fn sizes(sizes: [c_int; 4]) -> Result<[usize; 4], String> {
    match sizes.iter().all(|&size| size > 0) {
        true => Ok(sizes.map(|size| size as usize)),
        false => Err(format!("the sizes {sizes:?}")),
    }
}

macro_rules! creates {
    ($($name:ident: $value:expr;)*) => {$(
        /// Makes a descriptor.
        ///
        /// # Safety
        /// The pointer must be valid for a write.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(to: *mut Handle) -> c_int {
            // SAFETY: the caller promises it.
            unsafe { to.write(Box::into_raw(Box::new($value)).cast()) };
            0
        }
    )*};
}

creates! {
    cudnnCreate: Descriptor::Handle { stream: 0 };
    cudnnCreateTensorDescriptor: Descriptor::Tensor(None);
    cudnnCreateFilterDescriptor: Descriptor::Filter(None);
    cudnnCreateConvolutionDescriptor:
        Descriptor::Convolution { padding: 0, stride: 0, dilation: 0, groups: 1, math: 0 };
}

macro_rules! cudnn {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Every pointer must be as cuDNN's reference requires.
        #[unsafe(no_mangle)]
        #[allow(clippy::redundant_closure_call, reason = "the closure is where `?` returns to")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the pointers are as the caller promises.
            status(stringify!($name), unsafe { (|| -> Result<(), String> { $body })() })
        }
    )*};
}

/// What an error means.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetErrorString(_status: c_int) -> *const c_char {
    c"the mock wrote the reason to standard error".as_ptr()
}

cudnn! {
    /// The stream of a handle.
    fn cudnnSetStream(handle: Handle, stream: Handle) {
        match at(handle)? {
            Descriptor::Handle { stream: own } => *own = stream.addr() + 1,
            other => return Err(format!("{other:?} is no handle")),
        }
        Ok(())
    }

    /// Describes a tensor.
    fn cudnnSetTensor4dDescriptor(of: Handle, format: c_int, data_type: c_int, n: c_int, c: c_int, h: c_int, w: c_int) {
        if format != 0 {
            return Err("another format than NCHW".into());
        }
        match at(of)? {
            Descriptor::Tensor(own) => *own = Some((element(data_type)?, sizes([n, c, h, w])?)),
            other => return Err(format!("{other:?} is no tensor")),
        }
        Ok(())
    }

    /// Describes weights.
    fn cudnnSetFilter4dDescriptor(of: Handle, data_type: c_int, format: c_int, m: c_int, c: c_int, h: c_int, w: c_int) {
        if format != 0 {
            return Err("another format than NCHW".into());
        }
        match at(of)? {
            Descriptor::Filter(own) => *own = Some((element(data_type)?, sizes([m, c, h, w])?)),
            other => return Err(format!("{other:?} is no filter")),
        }
        Ok(())
    }

    /// Describes a convolution.
    fn cudnnSetConvolution2dDescriptor(
        of: Handle, pad_h: c_int, pad_w: c_int, stride_h: c_int, stride_w: c_int, dilation_h: c_int, dilation_w: c_int,
        mode: c_int, compute: c_int,
    ) {
        if (pad_h, stride_h, dilation_h) != (pad_w, stride_w, dilation_w) || pad_h < 0 {
            return Err("a convolution that is not the same in both directions".into());
        }
        if mode != 1 || compute != 0 || stride_h < 1 || dilation_h < 1 {
            return Err(format!("mode {mode}, type {compute}, stride {stride_h}, dilation {dilation_h}"));
        }
        match at(of)? {
            Descriptor::Convolution { padding, stride, dilation, .. } => {
                (*padding, *stride, *dilation) = (pad_h as usize, stride_h as usize, dilation_h as usize);
            }
            other => return Err(format!("{other:?} is no convolution")),
        }
        Ok(())
    }

    /// Sets the number of groups.
    fn cudnnSetConvolutionGroupCount(of: Handle, count: c_int) {
        match at(of)? {
            Descriptor::Convolution { groups, .. } if count > 0 => *groups = count as usize,
            other => return Err(format!("{count} groups of {other:?}")),
        }
        Ok(())
    }

    /// Sets how products may be rounded.
    fn cudnnSetConvolutionMathType(of: Handle, kind: c_int) {
        match at(of)? {
            Descriptor::Convolution { math, .. } if (0..4).contains(&kind) => *math = kind,
            other => return Err(format!("the math type {kind} of {other:?}")),
        }
        Ok(())
    }
}

/// `cudnnConvolutionFwdAlgoPerf_t` and its siblings.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Algorithm {
    algorithm: c_int,
    status: c_int,
    time: f32,
    memory: usize,
    determinism: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

/// The only algorithm that a careful program may choose.
const RIGHT: c_int = 5;

/// A convolution that fits its tensors.
struct Problem {
    element: Element,
    x: [usize; 4],
    w: [usize; 4],
    y: [usize; 4],
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
    math: c_int,
}

impl Problem {
    /// # Safety
    /// The descriptors must be such that this module made.
    unsafe fn new(
        handle: Handle,
        x: Handle,
        w: Handle,
        y: Handle,
        convolution: Handle,
    ) -> Result<Self, String> {
        // SAFETY: the caller promises it.
        let (handle, x, w, y, convolution) =
            unsafe { (at(handle)?, at(x)?, at(w)?, at(y)?, at(convolution)?) };
        let Descriptor::Handle { .. } = handle else {
            return Err(format!("{handle:?} is no handle"));
        };
        let (
            Descriptor::Tensor(Some((of_x, x))),
            Descriptor::Filter(Some((of_w, w))),
            Descriptor::Tensor(Some((of_y, y))),
            &mut Descriptor::Convolution { padding, stride, dilation, groups, math },
        ) = (&*x, &*w, &*y, convolution)
        else {
            return Err(format!(
                "descriptors of the wrong kind, or not filled in: {x:?}, {w:?}, {y:?}"
            ));
        };
        let ([n, c, height, width], [m, per_group, kh, kw]) = (*x, *w);
        let along = |size: usize, kernel: usize| {
            (size + 2 * padding)
                .checked_sub(dilation * (kernel - 1) + 1)
                .map(|room| room / stride + 1)
        };
        let output = along(height, kh).zip(along(width, kw));
        let output = output.ok_or("a kernel that does not fit the images")?;
        let fits = [of_w, of_y].iter().all(|of| *of == of_x)
            && c == per_group * groups
            && m % groups == 0
            && *y == [n, m, output.0, output.1];
        if !fits {
            return Err(format!(
                "x {x:?}, w {w:?}, y {y:?} in {groups} groups do not fit each other"
            ));
        }
        Ok(Self { element: *of_x, x: *x, w: *w, y: *y, padding, stride, dilation, groups, math })
    }

    /// The bytes of workspace that the right algorithm wants: some that depend on the problem.
    fn workspace(&self) -> usize {
        4 * (self.w.iter().product::<usize>() + self.y[2] * self.y[3])
    }

    fn offers(&self) -> [Algorithm; 5] {
        let offer = |algorithm, status, memory, determinism, math| Algorithm {
            algorithm,
            status,
            time: 1.0,
            memory,
            determinism,
            math,
            reserved: [0; 3],
        };
        let memory = self.workspace();
        [
            offer(1, 0, memory, 0, 1),
            offer(2, 0, 1 << 40, 1, 1),
            offer(3, 3000, memory, 1, 1),
            offer(RIGHT, 0, memory, 1, if self.math == 3 { 3 } else { 1 }),
            offer(4, 0, memory, 1, 3),
        ]
    }

    fn check(&self, algorithm: c_int, workspace: u64, bytes: usize) -> Result<(), String> {
        if algorithm != RIGHT {
            return Err(format!("the algorithm {algorithm}, which does not serve"));
        }
        if bytes < self.workspace() {
            return Err(format!("a workspace of {bytes} bytes, not {}", self.workspace()));
        }
        // What was in it is lost.
        device::write(workspace, &vec![0xff; self.workspace()])
    }

    /// Calls `visit` with the places in x, w and y of every product.
    fn each(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let ([n, c, height, width], [m, per_group, kh, kw]) = (self.x, self.w);
        let [_, _, output_height, output_width] = self.y;
        let units = m / self.groups;
        for (image, unit) in (0..n).flat_map(|image| (0..m).map(move |unit| (image, unit))) {
            for p in 0..output_height * output_width {
                let y = (image * m + unit) * output_height * output_width + p;
                for q in 0..per_group * kh * kw {
                    let (channel, i, j) = (q / (kh * kw), q / kw % kh, q % kw);
                    let row = p / output_width * self.stride + i * self.dilation;
                    let column = p % output_width * self.stride + j * self.dilation;
                    let inside =
                        row.checked_sub(self.padding).zip(column.checked_sub(self.padding));
                    let Some((row, column)) = inside.filter(|&(r, s)| r < height && s < width)
                    else {
                        continue;
                    };
                    let channel = unit / units * per_group + channel;
                    let x = ((image * c + channel) * height + row) * width + column;
                    visit(x, unit * per_group * kh * kw + q, y);
                }
            }
        }
    }

    /// result = alpha (the sum over products) + beta result, where the result is one of x, w and y.
    fn convolve(
        &self,
        [first, second, to]: [u64; 3],
        which: [usize; 3],
        [alpha, beta]: [f32; 2],
    ) -> Result<(), String> {
        count(Count::LibraryCalls, 1);
        let lengths = [self.x, self.w, self.y].map(|sizes| sizes.iter().product::<usize>());
        let first = self.element.read(first, lengths[which[0]])?;
        let second = self.element.read(second, lengths[which[1]])?;
        let mut sums = vec![0.0; lengths[which[2]]];
        self.each(|x, w, y| {
            let at = [x, w, y];
            sums[at[which[2]]] += first[at[which[0]]] * second[at[which[1]]];
        });
        let before = self.element.read(to, sums.len())?;
        for (sum, before) in sums.iter_mut().zip(before) {
            // With beta = 0 the old value does not count: new memory is NaN.
            let kept = if beta == 0.0 { 0.0 } else { f64::from(beta) * before };
            *sum = f64::from(alpha) * *sum + kept;
        }
        self.element.write(to, &sums)
    }
}

/// The three products, each with the functions to choose its algorithm and to ask for its
/// workspace. The descriptors are in the order of cuDNN's arguments.
macro_rules! products {
    ($(($find:ident, $size:ident, $run:ident): ($first:ident, $second:ident) -> $result:ident, $which:expr, ($x:ident, $w:ident, $y:ident);)*) => {$(
        cudnn! {
            /// Offers algorithms.
            fn $find(handle: Handle, $first: Handle, $second: Handle, convolution: Handle, $result: Handle,
                     wanted: c_int, found: *mut c_int, to: *mut Algorithm) {
                let problem = Problem::new(handle, $x, $w, $y, convolution)?;
                let offers = problem.offers();
                let number = offers.len().min(wanted.max(0) as usize);
                to.copy_from_nonoverlapping(offers.as_ptr(), number);
                found.write(number as c_int);
                Ok(())
            }

            /// Says how much workspace an algorithm wants.
            fn $size(handle: Handle, $first: Handle, $second: Handle, convolution: Handle, $result: Handle,
                     algorithm: c_int, to: *mut usize) {
                let problem = Problem::new(handle, $x, $w, $y, convolution)?;
                if algorithm != RIGHT {
                    return Err(format!("the algorithm {algorithm}, which does not serve"));
                }
                to.write(problem.workspace());
                Ok(())
            }

            /// Computes the product.
            fn $run(handle: Handle, alpha: *const f32, $first: Handle, first_data: u64, $second: Handle, second_data: u64,
                    convolution: Handle, algorithm: c_int, workspace: u64, bytes: usize, beta: *const f32,
                    $result: Handle, result_data: u64) {
                let problem = Problem::new(handle, $x, $w, $y, convolution)?;
                if let Descriptor::Handle { stream: 0 } = at(handle)? {
                    return Err("the handle has no stream".into());
                }
                problem.check(algorithm, workspace, bytes)?;
                let scales = [alpha.read(), beta.read()];
                problem.convolve([first_data, second_data, result_data], $which, scales)
            }
        }
    )*};
}

products! {
    (cudnnGetConvolutionForwardAlgorithm_v7, cudnnGetConvolutionForwardWorkspaceSize, cudnnConvolutionForward):
        (x, w) -> y, [0, 1, 2], (x, w, y);
    (cudnnGetConvolutionBackwardDataAlgorithm_v7, cudnnGetConvolutionBackwardDataWorkspaceSize, cudnnConvolutionBackwardData):
        (w, y) -> x, [1, 2, 0], (x, w, y);
    (cudnnGetConvolutionBackwardFilterAlgorithm_v7, cudnnGetConvolutionBackwardFilterWorkspaceSize, cudnnConvolutionBackwardFilter):
        (x, y) -> w, [0, 2, 1], (x, w, y);
}
