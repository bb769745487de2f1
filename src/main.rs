//! The binary: hands over to the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    orrery::cli::main()
}
