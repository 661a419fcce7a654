//! The `tidegate-lab` binary: the allocator of the node, and the command line.

use std::process::ExitCode;

/// The same as the node's: load generators hold as many connections as it does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // As the node does; a kernel without the switch only costs memory.
    rustix::thread::disable_transparent_huge_pages(true).ok();
    tidegate_lab::cli::main()
}
