//! `cargo e2e`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    match holdfast_e2e::cli::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
