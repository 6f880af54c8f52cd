//! The part of cuBLAS and cuRAND that Candle needs to open a device and to multiply matrices in
//! single precision.
//!
//! They are in the same library as the driver. A program that is linked with `-lcublas` or
//! `-lcurand` finds them if links with the names of those libraries point to it.

use std::ffi::{c_int, c_longlong, c_ulonglong, c_void};

use crate::Handle;
use crate::counts::{Count, count};
use crate::element::Element;

/// `CUBLAS_STATUS_SUCCESS` and `CURAND_STATUS_SUCCESS`.
const SUCCESS: c_int = 0;
/// `CUBLAS_STATUS_EXECUTION_FAILED`.
const FAILED: c_int = 13;
/// `CUBLAS_STATUS_NOT_SUPPORTED`. cuRAND has no such code, but it is an error there too.
const NOT_SUPPORTED: c_int = 15;
/// `CUDA_R_32F`.
const SINGLE: c_int = 0;
/// `CUBLAS_COMPUTE_32F`.
const COMPUTE_SINGLE: c_int = 68;
/// `CUBLAS_COMPUTE_32F_FAST_TF32`.
const COMPUTE_TF32: c_int = 77;
/// `CUBLAS_OP_N`: a matrix as it is.
const PLAIN: c_int = 0;

macro_rules! opens {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// Returns a handle, which nothing reads.
        ///
        /// # Safety
        /// The pointer must be valid for a write.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: *mut Handle $(, $argument: $type)*) -> c_int {
            $(let _ = $argument;)*
            // SAFETY: the caller promises it.
            unsafe { handle.write(std::ptr::without_provenance_mut(1)) };
            SUCCESS
        }
    )*};
}

macro_rules! does_nothing {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// Does nothing and succeeds.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> c_int {
            $(let _ = $argument;)*
            SUCCESS
        }
    )*};
}

opens! {
    cublasCreate_v2();
    curandCreateGenerator(kind: c_int);
}

does_nothing! {
    cublasDestroy_v2(handle: Handle);
    cublasSetStream_v2(handle: Handle, stream: Handle);
    curandDestroyGenerator(generator: Handle);
    curandSetPseudoRandomGeneratorSeed(generator: Handle, seed: c_ulonglong);
    curandSetStream(generator: Handle, stream: Handle);
}

/// A batch of matrices in device memory, each stored column by column.
struct Matrices {
    element: Element,
    address: u64,
    transposed: bool,
    leading: usize,
    stride: i64,
}

impl Matrices {
    /// Where matrix `index` begins.
    fn start(&self, index: usize) -> u64 {
        self.address.wrapping_add_signed(self.element.bytes() as i64 * index as i64 * self.stride)
    }

    /// Reads matrix `index`, which is `rows x columns` after its transposition, as a function of
    /// row and column.
    fn read(
        &self,
        index: usize,
        rows: usize,
        columns: usize,
    ) -> Result<impl Fn(usize, usize) -> f64, String> {
        let (inner, outer) = if self.transposed { (columns, rows) } else { (rows, columns) };
        let elements = self.leading * (outer - 1) + inner;
        let values = self.element.read(self.start(index), elements)?;
        let (leading, transposed) = (self.leading, self.transposed);
        Ok(move |row: usize, column: usize| {
            let at = if transposed { row * leading + column } else { column * leading + row };
            values[at]
        })
    }
}

/// `C = alpha op(A) op(B) + beta C` for each of a batch of matrices, in single precision only.
///
/// # Safety
/// `alpha` and `beta` must point to floats in host memory, as cuBLAS requires.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the arguments are cuBLAS's")]
pub unsafe extern "C" fn cublasGemmStridedBatchedEx(
    _handle: Handle,
    a_operation: c_int,
    b_operation: c_int,
    rows: c_int,
    columns: c_int,
    depth: c_int,
    alpha: *const f32,
    a: *const c_void,
    a_type: c_int,
    a_leading: c_int,
    a_stride: c_longlong,
    b: *const c_void,
    b_type: c_int,
    b_leading: c_int,
    b_stride: c_longlong,
    beta: *const f32,
    c: *mut c_void,
    c_type: c_int,
    c_leading: c_int,
    c_stride: c_longlong,
    batch: c_int,
    compute_type: c_int,
    _algorithm: c_int,
) -> c_int {
    let element = match (a_type, compute_type) {
        (SINGLE, COMPUTE_SINGLE | COMPUTE_TF32) => Element::Single,
        (2, COMPUTE_SINGLE) => Element::Half,
        (14, COMPUTE_SINGLE) => Element::Bfloat,
        _ => {
            eprintln!("mock driver: a product of the type {a_type}, computed in {compute_type}");
            return NOT_SUPPORTED;
        }
    };
    if [b_type, c_type] != [a_type; 2] || [rows, columns, depth, batch].iter().any(|&n| n < 1) {
        eprintln!("mock driver: a product of several types, or an empty one");
        return NOT_SUPPORTED;
    }
    let shortest = |operation: c_int, plain: c_int, transposed: c_int| {
        if operation == PLAIN { plain } else { transposed }
    };
    if a_leading < shortest(a_operation, rows, depth)
        || b_leading < shortest(b_operation, depth, columns)
        || c_leading < rows
    {
        eprintln!(
            "mock driver: the leading dimensions {a_leading}, {b_leading}, {c_leading} are too small"
        );
        return NOT_SUPPORTED;
    }
    count(Count::LibraryCalls, 1);
    let matrices = |address: u64, operation: c_int, leading: c_int, stride: c_longlong| Matrices {
        element,
        address,
        transposed: operation != PLAIN,
        leading: leading as usize,
        stride,
    };
    let a = matrices(a.addr() as u64, a_operation, a_leading, a_stride);
    let b = matrices(b.addr() as u64, b_operation, b_leading, b_stride);
    let c = matrices(c.addr() as u64, PLAIN, c_leading, c_stride);
    // SAFETY: the caller promises it.
    let (alpha, beta) = unsafe { (alpha.read(), beta.read()) };
    let [rows, columns, depth, batch] = [rows, columns, depth, batch].map(|size| size as usize);
    let multiply = |index: usize| -> Result<(), String> {
        let left = a.read(index, rows, depth)?;
        let right = b.read(index, depth, columns)?;
        for column in 0..columns {
            let start = c.start(index) + (element.bytes() * column * c.leading) as u64;
            let before = element.read(start, rows)?;
            let after: Vec<f64> = before
                .iter()
                .enumerate()
                .map(|(row, before)| {
                    let sum: f64 = (0..depth).map(|k| left(row, k) * right(k, column)).sum();
                    // With beta = 0 the old value does not count: new memory is NaN.
                    let kept = if beta == 0.0 { 0.0 } else { f64::from(beta) * before };
                    f64::from(alpha) * sum + kept
                })
                .collect();
            element.write(start, &after)?;
        }
        Ok(())
    };
    match (0..batch).try_for_each(multiply) {
        Ok(()) => SUCCESS,
        Err(reason) => {
            eprintln!("mock driver: {reason}");
            FAILED
        }
    }
}

macro_rules! is_not_there {
    ($($name:ident: $what:literal;)*) => {$(
        /// Is linked to, but not implemented.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            eprintln!("mock driver: {}", $what);
            NOT_SUPPORTED
        }
    )*};
}

is_not_there! {
    cublasDgemmStridedBatched: "a matrix product in f64";
    curandGenerateUniform: "random numbers of cuRAND";
    curandGenerateUniformDouble: "random numbers of cuRAND";
    curandGenerateNormal: "random numbers of cuRAND";
    curandGenerateNormalDouble: "random numbers of cuRAND";
}
