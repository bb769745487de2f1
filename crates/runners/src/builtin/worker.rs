//! The worker process of the built-in models (`orrery builtin-worker …`): processes client input
//! inside the [`Sandbox`], one job at a time, until the service closes the worker's standard input.
//! See `pool` for the other side.
//!
//! # Protocol
//!
//! A job is a line of JSON ([`Head`]), followed by the bytes of the input's JSON and the bytes of
//! the image. The worker responds with a line of JSON ([`Message`]). For a model that uses an
//! image, the worker first sends the run's weight and waits for a line with the number of bytes of
//! memory granted.

use std::io::{self, BufRead, BufWriter, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::weight::{MEMORY_MAX, MIB};
use super::{Work, find, images, refuse};
use orrery_domain::attempt::Failure;
use orrery_guard::groups;
use orrery_guard::sandbox::Sandbox;
use orrery_runtime::memory;

/// Memory of a worker in addition to the memory of a run: static data and memory retained by the
/// allocator.
pub(super) const MEMORY_BESIDE: u64 = 64 * MIB;
/// Memory of a run in addition to its weight: buffers, and tables that the model's crate builds
/// once.
const RUN_BESIDE: u64 = 8 * MIB;
/// CPU time limit of one run, in seconds.
pub(super) const CPU_SECONDS_MAX: u64 = 10;
/// Maximum length of a line from the service, in bytes.
const LINE_MAX: u64 = 4096;
/// Maximum number of bytes allocated in advance for a claimed length.
const READ_AHEAD: usize = 1024 * 1024;

/// Exit code of a worker that cannot enter its sandbox; never caused by a job.
pub(super) const NOT_STARTED: u8 = 125;

/// The arguments with which the service starts a worker.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct WorkerArgs {
    /// The process id of the service; the worker exits when the service does
    #[arg(long, value_name = "PID")]
    pub parent: i32,
    /// The control group to join
    #[arg(long, value_name = "FOLDER")]
    pub group: Option<std::path::PathBuf>,
}

/// The first line of a job.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Head {
    pub model: String,
    /// Bytes of memory that the run may use; for a model that uses an image, the bytes available
    /// for reading the image header.
    pub memory: u64,
    /// Length of the input's JSON, in bytes.
    pub input: usize,
    /// Length of the image, in bytes.
    pub image: usize,
}

/// A message from a worker to the service.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// Upper bound of the run's memory in bytes; the worker waits for a line that grants this
    /// amount.
    Weight(u64),
    Output(Value),
    Failed(Failure),
    /// The model panicked; the worker must not be reused.
    Panicked,
}

/// Serves jobs until the service closes its end, and returns the exit code of the process.
///
/// # Errors
/// Fails if reading from or writing to a stream fails.
pub fn run(args: &WorkerArgs) -> io::Result<u8> {
    memory::keep_less()?;
    let sandbox = match enter(args) {
        Ok(sandbox) => sandbox,
        Err(error) => {
            // The service logs the worker's standard error.
            drop(writeln!(io::stderr(), "the sandbox cannot be entered: {error}"));
            return Ok(NOT_STARTED);
        }
    };
    // A panic is reported in a message instead, because its text may quote the input.
    std::panic::set_hook(Box::new(|_panic| {}));
    let allow = |memory: u64| sandbox.limit(memory.saturating_add(RUN_BESIDE), CPU_SECONDS_MAX);
    serve(&mut io::stdin().lock(), &mut BufWriter::new(io::stdout().lock()), allow)?;
    Ok(0)
}

fn enter(args: &WorkerArgs) -> io::Result<Sandbox> {
    if let Some(group) = &args.group {
        groups::enter(group)?;
    }
    Sandbox::enter(args.parent, MEMORY_MAX + MEMORY_BESIDE)
}

/// Serves jobs. `allow` limits additional memory use to the given number of bytes.
fn serve(
    jobs: &mut impl BufRead,
    answers: &mut impl Write,
    allow: impl Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    while let Some(head) = read_line::<Head>(jobs)? {
        allow(head.memory)?;
        let input = read_bytes(jobs, head.input)?;
        let image = read_bytes(jobs, head.image)?;
        let builtin = find(&head.model).ok_or(io::ErrorKind::InvalidInput)?;
        // The service has already parsed the input, so parsing fails only if it nests too deeply.
        let Ok(parsed) = serde_json::from_slice::<Value>(&input) else {
            say(answers, &Message::Failed(refuse("the input nests too deeply")))?;
            continue;
        };
        drop(input);
        if matches!(builtin.work, Work::OnImage { .. }) {
            let weighed = guarded(|| builtin.weigh(&parsed, &image), Message::Weight);
            let is_refused = !matches!(weighed, Message::Weight(_));
            say(answers, &weighed)?;
            if is_refused {
                continue;
            }
            let Some(granted) = read_line::<u64>(jobs)? else { return Ok(()) };
            allow(granted)?;
        }
        say(answers, &guarded(|| builtin.compute(&parsed, &image), Message::Output))?;
    }
    Ok(())
}

/// Runs the model and converts a panic into a message.
fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>, good: fn(T) -> Message) -> Message {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(result)) => good(result),
        Ok(Err(failure)) => Message::Failed(failure),
        Err(_panic) => Message::Panicked,
    }
}

/// Reads the next line, or returns `None` when the service has closed its end.
fn read_line<T: for<'d> Deserialize<'d>>(jobs: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    if jobs.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

fn read_bytes(jobs: &mut impl BufRead, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(count.min(READ_AHEAD));
    let read = jobs.by_ref().take(count as u64).read_to_end(&mut bytes)?;
    if read == count { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn say(answers: &mut impl Write, answer: &Message) -> io::Result<()> {
    serde_json::to_writer(&mut *answers, answer)?;
    answers.write_all(b"\n")?;
    answers.flush()
}

/// Returns the memory that a worker may use to read a job with an image and the image header, in
/// bytes.
pub(super) const fn reading(image: usize) -> u64 {
    (image as u64).saturating_mul(2).saturating_add(images::HEAD_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_reports_model_panic() {
        assert_eq!(guarded(|| panic!("broken"), Message::Weight), Message::Panicked);
        assert_eq!(guarded(|| Err(refuse("x")), Message::Weight), Message::Failed(refuse("x")));
    }

    /// Builds a job as the service sends it.
    fn job(model: &str, input: &str, image: &[u8]) -> Vec<u8> {
        let model = model.to_owned();
        let input_bytes = input.len();
        let head = Head { model, memory: 7, input: input_bytes, image: image.len() };
        [&serde_json::to_vec(&head).unwrap(), b"\n".as_slice(), input.as_bytes(), image].concat()
    }

    fn answers(jobs: &[u8]) -> (Vec<Message>, Vec<u64>) {
        let mut said = Vec::new();
        let allowed = std::cell::RefCell::default();
        let allow = |memory| {
            std::cell::RefCell::<Vec<u64>>::borrow_mut(&allowed).push(memory);
            Ok(())
        };
        serve(&mut &*jobs, &mut said, allow).unwrap();
        let lines = said.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let parsed = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
        (parsed, allowed.into_inner())
    }

    #[test]
    fn worker_serves_jobs_in_sequence() {
        let deep = "[".repeat(200);
        let jobs = [
            job("text-template", r#"{"template":"a\nb"}"#, &[]),
            job("text-template", &deep, &[]),
            job("text-template", r#"{"template":"{{ x }}"}"#, &[]),
            job("image-resize", "{}", b"no image"),
            job("text-template", r#"{"template":"end"}"#, &[]),
        ];
        let (said, allowed) = answers(&jobs.concat());
        assert_eq!(said.len(), 5, "{said:?}");
        assert_eq!(said[0], Message::Output("a\nb".into()));
        assert_eq!(said[1], Message::Failed(refuse("the input nests too deeply")));
        assert!(
            matches!(&said[2], Message::Failed(failure) if failure.message.contains("undefined"))
        );
        assert_eq!(said[3], Message::Failed(refuse("image: unknown format")));
        assert_eq!(said[4], Message::Output("end".into()));
        assert_eq!(allowed, [7; 5]);
    }

    #[test]
    fn worker_waits_for_memory_grant_before_decoding_image() {
        let mut png = std::io::Cursor::new(Vec::new());
        image::GrayImage::new(9, 9).write_to(&mut png, image::ImageFormat::Png).unwrap();
        let asked = job("image-resize", r#"{"width":3,"format":"bmp"}"#, png.get_ref());
        let (said, _) = answers(&asked);
        let [Message::Weight(weight)] = said[..] else { panic!("{said:?}") };
        assert!(weight > 0);
        let (said, allowed) = answers(&[asked, b"99\n".to_vec()].concat());
        assert_eq!((said.len(), allowed), (2, vec![7, 99]));
        assert!(
            matches!(&said[1], Message::Output(image) if image.as_str().unwrap().contains("bmp"))
        );
    }

    #[test]
    fn worker_rejects_truncated_job() {
        let mut cut: &[u8] = b"12345";
        assert_eq!(read_bytes(&mut cut, 6).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let mut line: &[u8] = b"{\"model\":\"x\"";
        assert!(read_line::<Head>(&mut line).is_err());
        assert!(read_line::<Head>(&mut &b""[..]).unwrap().is_none());
    }
}
