//! The binary: runs the command line and selects the allocator (configured in
//! `.cargo/config.toml`).

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    orrery_cli::main()
}
