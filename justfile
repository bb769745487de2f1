# Everyday commands, for https://just.systems. They call cargo and the project's own scripts; CONTRIBUTING.md says more.

set positional-arguments

# List the commands
[private]
default:
    @{{ just_executable() }} --list --unsorted

# Check that everything compiles, without llama.cpp: the fastest answer
[group('build')]
check *args:
    cargo check --locked --workspace --all-targets --no-default-features "$@"

# Build the debug binary
[group('build')]
build *args:
    cargo build --locked "$@"

# Build the static release binary
[group('build')]
build-release *args:
    cargo build --locked --release "$@"

# Start the service from this source; arguments go to `orrery`
[group('build')]
run *args:
    ./run "$@"

# Run the tests that need only Rust; arguments go to `cargo test`
[group('test')]
test *args:
    cargo test --locked "$@"

# Run one resource's integration tests, such as `just test-it webhooks`
[group('test')]
test-it filter *args:
    cargo test --locked --test it "$@"

# Run all tests; installs the Debian packages that they need
[group('test')]
test-all *args:
    tests/run "$@"

# Check the JavaScript: format, lints, types, unit tests
[group('test')]
test-js *args:
    tests/js/run "$@"

# Run the fuzz targets, each for so many seconds
[group('test')]
fuzz seconds="30":
    fuzz/run {{ seconds }}

# Run the checks that take hours, or those that are named
[group('test')]
nightly *checks:
    tests/nightly "$@"

# Format Rust and JavaScript
[group('lint')]
format:
    cargo fmt
    tests/js/run --fix

# Check format, Clippy's lints, and the rules of tests/tidy.rs
[group('lint')]
lint:
    cargo fmt --check
    cargo clippy --locked --all-targets -- -D warnings
    cargo test --locked --test tidy

# Build the documentation of all crates, private items included
[group('lint')]
doc *args:
    cargo doc --locked --workspace --no-deps --no-default-features --document-private-items "$@"

# Run the gate, as each change has to pass it
[group('lint')]
gate:
    .ci/run

# Build the files of a release in target/dist
[group('release')]
release *args:
    ./release "$@"
