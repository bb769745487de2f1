//! The binary: hands over to the command line, and names the allocator (`.cargo/config.toml` has its
//! settings).

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    orrery::cli::main()
}
