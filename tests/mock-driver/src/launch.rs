//! Modules, kernels and their launches.

use std::ffi::c_void;
use std::sync::Arc;

use ptx_machine::Module;

use crate::device::with_memory;

/// A module in the context of a device.
pub(crate) struct LoadedModule {
    module: Arc<Module>,
    device: usize,
}

impl LoadedModule {
    pub(crate) fn new(device: usize, ptx: &str) -> Result<Self, String> {
        Ok(Self { module: Arc::new(Module::parse(ptx)?), device })
    }

    pub(crate) fn function(&self, name: &str) -> Option<Function> {
        self.module.contains(name).then(|| Function {
            module: self.module.clone(),
            device: self.device,
            name: name.to_string(),
        })
    }
}

/// A kernel of a module.
pub(crate) struct Function {
    module: Arc<Module>,
    device: usize,
    name: String,
}

impl Function {
    /// Runs the kernel.
    ///
    /// # Safety
    /// `parameters` must have a pointer to the value of every parameter.
    pub(crate) unsafe fn launch(
        &self,
        blocks: u32,
        threads: u32,
        parameters: *const *mut c_void,
    ) -> Result<(), String> {
        let kernel = self.module.kernel(&self.name)?;
        let mut arguments: Vec<&[u8]> = kernel
            .parameters()
            .enumerate()
            // SAFETY: the caller promises one pointer per parameter, each to as many bytes as the
            // parameter has.
            .map(|(i, size)| unsafe {
                std::slice::from_raw_parts((*parameters.add(i)).cast(), size)
            })
            .collect();
        if std::env::var("MOCK_CUDA_FAIL").is_ok_and(|kernel| kernel == self.name) {
            return Err(format!("{} fails because of MOCK_CUDA_FAIL", self.name));
        }
        if let Some((i, j)) = self.swapped() {
            arguments.swap(i, j);
        }
        with_memory(self.device, |memory| {
            ptx_machine::launch(&self.module, &self.name, blocks, threads, &arguments, memory, 0)
        })
    }

    /// The two arguments of this kernel that `MOCK_CUDA_SWAP=kernel,i,j` says to swap.
    fn swapped(&self) -> Option<(usize, usize)> {
        let swap = std::env::var("MOCK_CUDA_SWAP").ok()?;
        let mut parts = swap.split(',');
        (parts.next()? == self.name).then_some(())?;
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}
