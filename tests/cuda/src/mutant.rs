//! Copies of the source with one defect each, which the checks must reject.

use crate::machine::Program;

/// A defect: a replacement of a text that occurs exactly once.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// What is wrong with it.
    pub defect: &'static str,
    from: &'static str,
    to: &'static str,
}

impl Mutant {
    /// The program with the defect. Panics if the source no longer has the text. Then the mutant
    /// must be rewritten.
    pub fn apply(&self, program: &Program) -> Program {
        let found = program.source.matches(self.from).count();
        assert_eq!(found, 1, "{}: `{}` occurs {found} times", self.defect, self.from);
        Program { source: program.source.replace(self.from, self.to), ..program.clone() }
    }
}

/// Panics if a mutant passes the check. `check` compiles the program and runs
/// [`crate::check::all`] on it.
pub fn expect_all_caught(program: &Program, check: impl Fn(&Program) -> Result<(), String> + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    std::thread::scope(|scope| {
        for share in MUTANTS.chunks(MUTANTS.len().div_ceil(threads)) {
            let check = &check;
            scope.spawn(move || {
                for mutant in share {
                    let error = check(&mutant.apply(program)).expect_err(mutant.defect);
                    println!("{}: {error}", mutant.defect);
                }
            });
        }
    });
}

/// The defects.
pub const MUTANTS: [Mutant; 26] = [
    Mutant {
        defect: "no barrier before the block's sums are merged",
        from: "sums[threadIdx.x] = mine;\n    __syncthreads();",
        to: "sums[threadIdx.x] = mine;",
    },
    Mutant {
        defect: "no barrier before the warps' sums are added",
        from: "warp_sums[warp] = sum.g_z;\n    __syncthreads();",
        to: "warp_sums[warp] = sum.g_z;",
    },
    Mutant {
        defect: "the shuffles start at a quarter of the warp",
        from: "int offset = WARP / 2;",
        to: "int offset = WARP / 4;",
    },
    Mutant { defect: "nine rounds of Philox", from: "round < 10", to: "round < 9" },
    Mutant {
        defect: "the first uniform may be zero",
        from: "(first >> 8) + 1u",
        to: "(first >> 8)",
    },
    Mutant {
        defect: "single elements take the wrong pair of normals",
        from: "(element & 2) != 0",
        to: "(element & 2) == 0",
    },
    Mutant {
        defect: "folded samples all use the first sample",
        from: "sample += quad / quads_per_sample;",
        to: "",
    },
    Mutant {
        defect: "a reduction reads one vector too many",
        from: "threadIdx.x < stride && vector < end",
        to: "threadIdx.x < stride && vector <= end",
    },
    Mutant {
        defect: "an elementwise kernel writes one vector too many",
        from: "vector < vectors; vector += stride",
        to: "vector <= vectors; vector += stride",
    },
    Mutant {
        defect: "the remainder of the mean is forgotten",
        from: "__fsub_rn(__fsub_rn(u, mean), remainder)",
        to: "__fsub_rn(u, mean)",
    },
    Mutant {
        defect: "the last part of a channel is not merged",
        from: "part < tiling.parts; part += WARP",
        to: "part + 1 < tiling.parts; part += WARP",
    },
    Mutant {
        defect: "channels take the scale of the wrong group",
        from: ": channel / problem.channels_per_group]",
        to: ": channel % problem.channels_per_group]",
    },
    Mutant {
        defect: "the forward kernel's arguments are swapped",
        from: "forward_of<T, W>(u, statistics, sigma, y, problem);",
        to: "forward_of<T, W>(u, sigma, statistics, y, problem);",
    },
    Mutant {
        defect: "an expected ReLU keeps negative means",
        from: "fmaf(s, h, m > 0.0f ? m : 0.0f)",
        to: "fmaf(s, h, m)",
    },
    Mutant {
        defect: "the polynomials are used beyond their end",
        from: "return u > END ? END : u;",
        to: "return u;",
    },
    Mutant {
        defect: "a maximum has a larger variance than its elements",
        from: "fmaf(-sum * h, u + h,",
        to: "fmaf(sum * h, u + h,",
    },
    Mutant {
        defect: "the variances of a pair are swapped",
        from: "cdf = t > 0.0f ? 1.0f - q : q",
        to: "cdf = t > 0.0f ? q : 1.0f - q",
    },
    Mutant {
        defect: "a window misses its last element",
        from: "element(windows.input_width + 1)",
        to: "element(windows.input_width)",
    },
    Mutant {
        defect: "the last of several maxima gets the gradient",
        from: "value > largest || value != value",
        to: "value >= largest || value != value",
    },
    Mutant {
        defect: "a maximum hides a NaN",
        from: "value > largest || value != value",
        to: "value > largest",
    },
    Mutant {
        defect: "of equal logits the last is the prediction",
        from: "other.place < place",
        to: "other.place > place",
    },
    Mutant {
        defect: "gradients are not clipped",
        from: "(norm > rule.clip ? rule.clip / norm : 1.0f)",
        to: "1.0f",
    },
    Mutant {
        defect: "a step is taken although the loss is not finite",
        from: "0.0 * total == 0.0 && 0.0f * loss == 0.0f",
        to: "0.0 * total == 0.0",
    },
    Mutant {
        defect: "the radial part of a gradient is doubled, not removed",
        from: "fmaf(-radial, w, scale",
        to: "fmaf(radial, w, scale",
    },
    Mutant {
        defect: "a strided convolution's gradient comes from windows between its windows",
        from: "if (down % of.stride != 0 || right % of.stride != 0) continue;",
        to: "",
    },
    Mutant {
        defect: "pooling writes one output too many",
        from: "output < outputs; output += stride",
        to: "output <= outputs; output += stride",
    },
];
