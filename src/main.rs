//! Binary `tidegate`: the allocator and the command line.

use std::process::ExitCode;

/// Allocator that packs the memory of many small connections, and returns it to the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // With the huge pages that the allocator requests, a login storm leaves behind twice the memory that its
    // connections need (docs/performance.md). An error is ignored: a kernel without this switch only costs memory.
    rustix::thread::disable_transparent_huge_pages(true).ok();
    tidegate::cli::main()
}
