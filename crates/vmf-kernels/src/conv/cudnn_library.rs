//! The functions of cuDNN that a convolution needs, found in the library at run time.
//!
//! cuDNN is optional. A program that is linked with it does not start without it, so it is opened
//! when the first convolution asks for it. The declarations are those of `cudnn_cnn.h` and
//! `cudnn_graph.h` of version 9; version 8 has the same.

use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// A handle or descriptor of cuDNN.
pub(super) type Opaque = *mut c_void;

/// `cudnnConvolutionFwdAlgoPerf_t` and its two siblings, which have the same fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Algorithm {
    pub(super) algorithm: c_int,
    pub(super) status: c_int,
    time: f32,
    pub(super) workspace: usize,
    /// 1 if it gives the same bits every time.
    pub(super) determinism: c_int,
    pub(super) math: c_int,
    reserved: [c_int; 3],
}

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($type:ty),* $(,)?);)*) => {
        /// The functions, with the library that they are in.
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($type),*) -> c_int,)*
            error_string: unsafe extern "C" fn(c_int) -> *const c_char,
            _library: Library,
        }

        impl Functions {
            fn of(library: Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of the declarations in cuDNN's headers.
                unsafe {
                    Ok(Self {
                        $($field: *library.get($symbol)?,)*
                        error_string: *library.get(b"cudnnGetErrorString\0")?,
                        _library: library,
                    })
                }
            }
        }
    };
}

type Find = *mut Algorithm;

functions! {
    create = b"cudnnCreate\0": fn(*mut Opaque);
    set_stream = b"cudnnSetStream\0": fn(Opaque, Opaque);
    create_tensor = b"cudnnCreateTensorDescriptor\0": fn(*mut Opaque);
    set_tensor = b"cudnnSetTensor4dDescriptor\0": fn(Opaque, c_int, c_int, c_int, c_int, c_int, c_int);
    create_filter = b"cudnnCreateFilterDescriptor\0": fn(*mut Opaque);
    set_filter = b"cudnnSetFilter4dDescriptor\0": fn(Opaque, c_int, c_int, c_int, c_int, c_int, c_int);
    create_convolution = b"cudnnCreateConvolutionDescriptor\0": fn(*mut Opaque);
    set_convolution = b"cudnnSetConvolution2dDescriptor\0": fn(Opaque, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int);
    set_groups = b"cudnnSetConvolutionGroupCount\0": fn(Opaque, c_int);
    set_math = b"cudnnSetConvolutionMathType\0": fn(Opaque, c_int);
    find_forward = b"cudnnGetConvolutionForwardAlgorithm_v7\0": fn(Opaque, Opaque, Opaque, Opaque, Opaque, c_int, *mut c_int, Find);
    find_input_gradient = b"cudnnGetConvolutionBackwardDataAlgorithm_v7\0": fn(Opaque, Opaque, Opaque, Opaque, Opaque, c_int, *mut c_int, Find);
    find_weight_gradient = b"cudnnGetConvolutionBackwardFilterAlgorithm_v7\0": fn(Opaque, Opaque, Opaque, Opaque, Opaque, c_int, *mut c_int, Find);
    size_forward = b"cudnnGetConvolutionForwardWorkspaceSize\0": fn(Opaque, Opaque, Opaque, Opaque, Opaque, c_int, *mut usize);
    size_input_gradient = b"cudnnGetConvolutionBackwardDataWorkspaceSize\0": fn(Opaque, Opaque, Opaque, Opaque, Opaque, c_int, *mut usize);
    size_weight_gradient = b"cudnnGetConvolutionBackwardFilterWorkspaceSize\0": fn(Opaque, Opaque, Opaque, Opaque, Opaque, c_int, *mut usize);
    forward = b"cudnnConvolutionForward\0": fn(Opaque, *const f32, Opaque, u64, Opaque, u64, Opaque, c_int, u64, usize, *const f32, Opaque, u64);
    input_gradient = b"cudnnConvolutionBackwardData\0": fn(Opaque, *const f32, Opaque, u64, Opaque, u64, Opaque, c_int, u64, usize, *const f32, Opaque, u64);
    weight_gradient = b"cudnnConvolutionBackwardFilter\0": fn(Opaque, *const f32, Opaque, u64, Opaque, u64, Opaque, c_int, u64, usize, *const f32, Opaque, u64);
}

impl Functions {
    /// What a status means, in cuDNN's words.
    pub(super) fn message(&self, status: c_int) -> String {
        // SAFETY: cuDNN returns a string that lives as long as the library.
        unsafe { CStr::from_ptr((self.error_string)(status)) }.to_string_lossy().into_owned()
    }
}

/// The variable that says where cuDNN is, or `off`.
const VARIABLE: &str = "VMF_CUDNN";

/// cuDNN, or why it is not used.
pub(super) fn library() -> Result<&'static Functions, &'static str> {
    static LIBRARY: OnceLock<Result<Functions, String>> = OnceLock::new();
    LIBRARY.get_or_init(open).as_ref().map_err(String::as_str)
}

fn open() -> Result<Functions, String> {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let names = match wanted.as_str() {
        "off" => return Err(format!("{VARIABLE} is off")),
        "" if cfg!(windows) => vec!["cudnn64_9.dll", "cudnn64_8.dll"],
        "" => vec!["libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"],
        path => vec![path],
    };
    let mut reason = String::new();
    for name in names {
        // SAFETY: opening cuDNN runs its own initializers, as linking with it would.
        match unsafe { Library::new(name) }.and_then(Functions::of) {
            Ok(functions) => return Ok(functions),
            Err(error) => reason = format!("{name}: {error}"),
        }
    }
    Err(reason)
}
