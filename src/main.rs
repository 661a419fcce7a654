//! The `tidegate` binary: an allocator and the command line.

use std::process::ExitCode;

/// Keeps memory of many small connections together, and gives it back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The allocator asks for huge pages; a login storm then leaves twice the memory that its connections need
    // (docs/performance.md). A kernel without the switch only costs memory.
    rustix::thread::disable_transparent_huge_pages(true).ok();
    tidegate::cli::main()
}
