//! Small programs whose results are known, and programs that the machine must refuse.

use ptx_machine::{Memory, Module, launch};

const BUFFER: usize = 64;

/// Runs a body and returns the words of a buffer. `%rd1` is the address of the buffer of 64 words,
/// `%r1` the thread, and `%rd2` the address of the thread's word. Word i holds i at first.
fn run(body: &str, threads: u32, order: u32) -> Result<Vec<u32>, String> {
    let module = Module::parse(&format!(
        ".version 8.0
         .target sm_80
         .visible .entry kernel(.param .u64 out) {{
             .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;
             .shared .align 4 .b8 buffer[256];
             ld.param.u64 %rd1, [out];
             mov.u32 %r1, %tid.x;
             mul.wide.u32 %rd2, %r1, 4;
             add.s64 %rd2, %rd1, %rd2;
             {body}
             ret;
         }}"
    ))?;
    let words: Vec<u8> = (0..BUFFER as u32).flat_map(u32::to_le_bytes).collect();
    let mut memory = Memory::default();
    let address = memory.allocate(&words);
    launch(&module, "kernel", 1, threads, &[&address.to_le_bytes()], &mut memory, order)?;
    let bytes = memory.read(address, 4 * BUFFER)?;
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    Ok(bytes.chunks_exact(4).map(word).collect())
}

/// The first word that one thread stores from %r8.
fn result(body: &str) -> u32 {
    run(&format!("{body} st.global.u32 [%rd1], %r8;"), 1, 0).unwrap()[0]
}

#[test]
fn integers_wrap_and_widen_as_the_manual_says() {
    assert_eq!(result("mov.u32 %r2, 0xffffffff; add.s32 %r8, %r2, 2;"), 1);
    assert_eq!(result("mov.u32 %r2, 0xD2511F53; mul.hi.u32 %r8, %r2, %r2;"), 0xacc9_3119);
    assert_eq!(result("mov.u32 %r2, -7; div.s32 %r8, %r2, 2;"), -3i32 as u32);
    assert_eq!(result("mov.u32 %r2, -7; shr.s32 %r8, %r2, 1;"), -4i32 as u32);
    assert_eq!(result("mov.u32 %r2, 1; shl.b32 %r8, %r2, 32;"), 0);
    assert_eq!(result("mov.u32 %r2, 5; mad.lo.s32 %r8, %r2, %r2, -1;"), 24);
    let wide = "mov.u32 %r2, -1; mul.wide.s32 %rd3, %r2, 3; shr.u64 %rd3, %rd3, 32; cvt.u32.u64 %r8, %rd3;";
    assert_eq!(result(wide), u32::MAX);
}

#[test]
fn floats_round_once() {
    let bits = |value: f32| value.to_bits();
    // (1 + 2^-12)^2 is 1 + 2^-11 + 2^-24. The last term survives only if the product is not
    // rounded.
    let square = "mov.f32 %f1, 0f3F800800; neg.f32 %f2, 0f3F801000; fma.rn.f32 %f3, %f1, %f1, %f2; mov.b32 %r8, %f3;";
    assert_eq!(result(square), bits(0.5f32.powi(24)));
    assert_eq!(result("mov.f32 %f1, 0f40490FDB; cvt.rzi.s32.f32 %r8, %f1;"), 3);
    assert_eq!(
        result("mov.f32 %f1, 0f40200000; cvt.rni.f32.f32 %f2, %f1; mov.b32 %r8, %f2;"),
        bits(2.0)
    );
    // 2049 lies between two halves, 2048 and 2050; the even one is taken.
    let half =
        "mov.f32 %f1, 0f45001000; cvt.rn.f16.f32 %h1, %f1; cvt.f32.f16 %f2, %h1; mov.b32 %r8, %f2;";
    assert_eq!(result(half), bits(2048.0));
}

#[test]
fn rounding_down_saturation_and_flushing_are_as_asked_for() {
    let float = |body: &str| f32::from_bits(result(&format!("{body} mov.b32 %r8, %f3;")));
    // 1 + 2^-30 and 1 - 2^-30: the nearest number is 1 for both.
    let one = |c: f32| {
        let c = c.to_bits();
        float(&format!(
            "mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f{c:08X}; fma.rm.f32 %f3, %f1, %f1, %f2;"
        ))
    };
    assert_eq!(one(0.5f32.powi(30)), 1.0);
    assert_eq!(one(-0.5f32.powi(30)), 1.0f32.next_down());
    assert_eq!(one(1.0), 2.0);
    let saturated = |value: f32| {
        let value = value.to_bits();
        float(&format!("mov.f32 %f1, 0f{value:08X}; cvt.sat.f32.f32 %f3, %f1;"))
    };
    let values = [-2.0, 0.25, 3.0, f32::NAN];
    assert_eq!(values.map(saturated), [0.0, 0.25, 1.0, 0.0]);
    // 2^-130 is subnormal, 2^-126 is the smallest normal number.
    let power = |value: f32| {
        let value = value.to_bits();
        float(&format!("mov.f32 %f1, 0f{value:08X}; ex2.approx.ftz.f32 %f3, %f1;"))
    };
    assert_eq!([3.0, -126.0, -130.0].map(power), [8.0, f32::MIN_POSITIVE, 0.0]);
}

#[test]
fn comparisons_know_nan() {
    let compare = |name: &str| {
        result(&format!(
            "mov.f32 %f1, 0f7FC00000; setp.{name}.f32 %p1, %f1, %f1; selp.u32 %r8, 1, 0, %p1;"
        ))
    };
    assert_eq!(
        ["eq", "ne", "lt", "ge", "equ", "neu", "ltu", "nan", "num"].map(compare),
        [0, 0, 0, 0, 1, 1, 1, 1, 0]
    );
    let signed = "mov.u32 %r2, -1; setp.lt.s32 %p1, %r2, 0; setp.lt.u32 %p2, %r2, 0; and.pred %p3, %p1, %p2; \
                  not.pred %p4, %p3; selp.u32 %r8, 1, 0, %p4;";
    assert_eq!(result(signed), 1);
}

#[test]
fn guards_and_branches_steer_single_threads() {
    let body = "setp.lt.u32 %p1, %r1, 2; @%p1 bra $skip; st.global.u32 [%rd2], 9; $skip: @!%p1 st.global.u32 [%rd2+128], 8;";
    let words = run(body, 4, 0).unwrap();
    assert_eq!(words[..4], [0, 1, 9, 9]);
    assert_eq!(words[32..36], [32, 33, 8, 8]);
}

#[test]
fn shuffles_move_values_between_lanes() {
    let shuffle = |mode: &str, arguments: &str| {
        let body = format!(
            "shfl.sync.{mode}.b32 %r2|%p1, %r1, {arguments}, -1; selp.u32 %r3, 100, 0, %p1; \
             add.s32 %r2, %r2, %r3; st.global.u32 [%rd2], %r2;"
        );
        run(&body, 32, 2).unwrap()
    };
    // The first argument is the distance or lane, the second the clamp: 31, or 0 for up.
    assert_eq!(shuffle("down", "4, 31")[..32][26..30], [130, 131, 28, 29]);
    assert_eq!(shuffle("up", "4, 0")[2..6], [2, 3, 100, 101]);
    assert_eq!(shuffle("bfly", "1, 31")[..4], [101, 100, 103, 102]);
    assert_eq!(shuffle("idx", "7, 31")[..3], [107, 107, 107]);
    // Segments of 8 lanes: 0x1800 has the bits of the segment's number.
    assert_eq!(shuffle("down", "1, 0x1807")[6..9], [107, 7, 109]);
}

const EXCHANGE: [&str; 2] = [
    "shl.b32 %r2, %r1, 2; mov.u32 %r3, buffer; add.s32 %r2, %r2, %r3; st.shared.u32 [%r2], %r1;",
    "mov.u32 %r4, 63; sub.s32 %r4, %r4, %r1; shl.b32 %r4, %r4, 2; add.s32 %r4, %r4, %r3; \
     ld.shared.u32 %r5, [%r4]; st.global.u32 [%rd2], %r5;",
];

#[test]
fn a_barrier_orders_shared_memory_and_its_absence_shows() {
    let with = EXCHANGE.join("bar.sync 0;");
    let reversed: Vec<u32> = (0..64).rev().collect();
    for order in 0..4 {
        assert_eq!(run(&with, 64, order).unwrap(), reversed);
    }
    let without = EXCHANGE.concat();
    assert_ne!(run(&without, 64, 0).unwrap(), run(&without, 64, 1).unwrap());
}

#[test]
fn what_a_gpu_would_not_forgive_is_an_error() {
    let defects = [
        ("not reached by all threads", "setp.lt.u32 %p1, %r1, 3; @%p1 ret; bar.sync 0;"),
        (
            "different barriers",
            "setp.lt.u32 %p1, %r1, 3; @%p1 bra $a; bar.sync 0; ret; $a: bar.sync 0;",
        ),
        ("does not exist or has exited", "shfl.sync.down.b32 %r2, %r1, 1, 31, -1;"),
        ("leaves it out", "shfl.sync.down.b32 %r2, %r1, 1, 31, 1;"),
        ("outside of any allocation", "st.global.u32 [%rd2+256], %r1;"),
        ("outside of any allocation", "ld.global.u32 %r2, [%r1];"),
        ("not aligned", "st.global.u32 [%rd2+2], %r1;"),
        ("not aligned", "ld.global.v2.u32 {%r2, %r3}, [%rd2+4];"),
        ("of 256", "mov.u32 %r2, buffer; ld.shared.u32 %r3, [%r2+256];"),
        ("Div", "mov.u32 %r2, 0; div.u32 %r3, %r2, %r2;"),
    ];
    for (message, body) in defects {
        let error = run(body, 16, 0).unwrap_err();
        assert!(error.contains(message), "{body}: {error}");
    }
}

#[test]
fn unknown_instructions_are_named_and_never_skipped() {
    for unknown in [
        "add.ftz.f32 %f1, %f1, %f1;",
        "add.sat.f32 %f1, %f1, %f1;",
        "cvt.rz.f32.u32 %f1, %r1;",
        "atom.global.add.u32 %r2, [%rd1], 1;",
        "bar.sync 1;",
        "call foo;",
        "mov.u32 %r2, %clock;",
    ] {
        let error = run(unknown, 1, 0).unwrap_err();
        assert!(error.contains("line 10") && error.contains("unknown"), "{unknown}: {error}");
    }
}

#[test]
fn arguments_must_have_the_sizes_of_the_parameters() {
    let module = Module::parse(
        ".visible .entry kernel(.param .u32 a, .param .align 8 .b8 b[12], .param .u64 .ptr .align 1 c) { ret; }",
    )
    .unwrap();
    let sizes: Vec<usize> = module.kernel("kernel").unwrap().parameters().collect();
    assert_eq!(sizes, [4, 12, 8]);
    let memory = &mut Memory::default();
    let good: [&[u8]; 3] = [&[0; 4], &[0; 12], &[0; 8]];
    launch(&module, "kernel", 1, 1, &good, memory, 0).unwrap();
    let error = launch(&module, "kernel", 1, 1, &good[..2], memory, 0).unwrap_err();
    assert!(error.contains("2 arguments for 3"), "{error}");
    let swapped = [good[2], good[1], good[0]];
    let error = launch(&module, "kernel", 1, 1, &swapped, memory, 0).unwrap_err();
    assert!(error.contains("argument 0 has 8 bytes, not 4"), "{error}");
}
