//! The `tidegate` binary: an allocator and the command line.

use std::process::ExitCode;

/// Keeps memory of many small connections together, and gives it back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::main()
}
