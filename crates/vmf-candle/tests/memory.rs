//! Freed memory stays with the process: using it again costs no page faults.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use vmf_candle::train::keep_freed_memory;

/// Pages that this process has asked the kernel for so far.
fn page_faults() -> i64 {
    // SAFETY: zeros are a valid `rusage`, and the function fills it in.
    unsafe {
        let mut usage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0);
        usage.ru_minflt
    }
}

/// The page faults of writing to 80 MB, in blocks of the size of activations.
fn faults_of_a_step() -> i64 {
    let before = page_faults();
    let blocks: Vec<Vec<u8>> = (0..2).map(|_| std::hint::black_box(vec![1; 40 << 20])).collect();
    drop(blocks);
    page_faults() - before
}

#[test]
fn the_second_step_asks_for_no_pages() {
    let blocks_of_their_own = (0..3).map(|_| faults_of_a_step()).min();
    keep_freed_memory();
    let first = faults_of_a_step();
    let later = (0..3).map(|_| faults_of_a_step()).max();
    // The kernel may give 2 MB at a time: 40 faults for 80 MB.
    assert!(blocks_of_their_own >= Some(40), "{blocks_of_their_own:?}");
    assert!(later < Some(10), "{first} at first, then {later:?}");
}
