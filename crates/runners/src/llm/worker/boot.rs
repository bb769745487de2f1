//! Starts the process: enters the sandbox, loads the model, and serves requests.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::adapter::Adapter;
use super::embeddings::{Embedder, Pooling};
use super::engine::{self, Engine};
use super::score::{Labels, Scorer};
use super::server::{self, Chat, Loaded};
use super::template::ChatTemplate;
use super::watch::Watch;
use super::{WorkerArgs, log, not_started};
use crate::llm::gguf::Header;
use orrery_guard::sandbox::OwnMemory;
use orrery_runtime::memory;

/// Number of threads that parse requests: prompts are tokenized in parallel with the model's
/// computation.
const READERS: usize = 2;

/// Stack size of each thread in bytes: llama.cpp splits words and parses grammars recursively.
const STACK: usize = 64 * 1024 * 1024;
/// Number of compute threads: one generates text, and one scores labels.
const COMPUTERS: usize = 2;
/// Memory of the stacks, in addition to the operator's limit.
const STACKS: u64 = (STACK * (READERS + COMPUTERS)) as u64;

/// The loading state: `None` while loading, then the model or the load error.
pub(super) type State = Option<Result<Arc<Loaded>, String>>;

/// Serves the model until the service closes the socket.
///
/// # Errors
/// Fails if standard input is not a socket.
pub(super) fn run(args: &WorkerArgs) -> io::Result<u8> {
    memory::keep_less()?;
    let (template, own) = match shut_in(args) {
        Ok(shut_in) => shut_in,
        Err(error) => return Ok(not_started(&error)),
    };
    log::set_up();
    let socket = Socket::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let (ready, state) = watch::channel(None);
    let of_model = args.clone();
    let watch = Watch::new(Some(own));
    let of_work = Arc::clone(&watch);
    std::thread::Builder::new()
        .name("model".to_owned())
        .stack_size(STACK)
        .spawn(move || or_abort(|| load(&of_model, template.as_deref(), &of_work, &ready)))?;
    std::thread::Builder::new().name("watch".to_owned()).spawn(move || watch.run())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(READERS)
        .thread_stack_size(STACK)
        .build()?;
    runtime.block_on(async {
        let socket = UnixStream::from_std(socket)?;
        server::serve(socket, state).await
    })?;
    Ok(0)
}

/// Drops access to everything except the model's files. Returns the operator's chat template, and a
/// view of the process's memory.
fn shut_in(args: &WorkerArgs) -> io::Result<(Option<String>, OwnMemory)> {
    let template = args.chat_template.as_ref().map(std::fs::read_to_string).transpose()?;
    let adapter: Vec<&Path> = args.lora.iter().map(PathBuf::as_path).collect();
    let own = args.common.enter_sandbox(STACKS, &adapter)?;
    Ok((template, own))
}

/// Loads the model, reports readiness, and computes on this thread until no client is left.
fn load(
    args: &WorkerArgs,
    template: Option<&str>,
    watch: &Arc<Watch>,
    ready: &watch::Sender<State>,
) {
    let refuse = |reason: String| {
        // If the receiver was dropped, the process is exiting.
        let _unheard = ready.send(Some(Err(reason)));
    };
    let because = |what: &str| match log::last_error() {
        Some(error) => format!("{what}: {error}"),
        None => what.to_owned(),
    };
    let backend = match LlamaBackend::init() {
        Ok(backend) => backend,
        Err(error) => return refuse(format!("llama.cpp cannot start: {error}")),
    };
    let header = match Header::read(&args.common.file) {
        Ok(header) => header,
        Err(error) => return refuse(format!("its file {error}")),
    };
    let loaded =
        LlamaModel::load_from_file(&backend, &args.common.file, &LlamaModelParams::default());
    let Ok(mut model) = loaded else {
        return refuse(because("llama.cpp cannot load it"));
    };
    let scale = args.lora_scale.unwrap_or(1.0);
    let adapter = args.lora.as_ref().map(|file| Adapter::load(&mut model, file, scale));
    let Ok(adapter) = adapter.transpose() else {
        return refuse(because("llama.cpp cannot load its adapter"));
    };
    let model = Arc::new(model);
    let limits = engine::Limits {
        context: args.context,
        threads: i32::try_from(args.common.threads).unwrap_or(1),
        parallel: args.parallel,
        batch: args.batch,
    };
    if let Some(pooling) = pooling_of(&header) {
        let served = Embedder::new(&model, &backend, limits, pooling, adapter.as_ref(), watch);
        let Ok((mut embedder, jobs)) = served else {
            return refuse(because("llama.cpp cannot create its context"));
        };
        let name = args.common.name.clone();
        let loaded = Loaded::pooled(name, Arc::clone(&model), pooling, jobs, limits, watch);
        let _unheard = ready.send(Some(Ok(Arc::new(loaded))));
        embedder.run();
        return;
    }
    let template = ChatTemplate::of_model(&model, template);
    let served = Engine::new(&model, &backend, limits, adapter.as_ref(), watch);
    let Ok((mut engine, jobs)) = served else {
        return refuse(because("llama.cpp cannot create its context"));
    };
    let labels = Arc::new(Labels::of(&model));
    let (scorer, scores) =
        Scorer::new(&model, &backend, Arc::clone(&labels), limits, adapter, watch);
    let chat = Chat { jobs, template, scores, labels };
    let loaded = Loaded::chat(args.common.name.clone(), Arc::clone(&model), limits, chat, watch);
    std::thread::scope(|threads| {
        let work = move || or_abort(|| scorer.run());
        let named = std::thread::Builder::new().name("scores".to_owned()).stack_size(STACK);
        match named.spawn_scoped(threads, work) {
            Ok(_running) => {
                let _unheard = ready.send(Some(Ok(Arc::new(loaded))));
                engine.run();
            }
            Err(error) => refuse(format!("its threads cannot be started: {error}")),
        }
    });
}

/// Returns how a model pools the vectors of a text; `None` if it generates text.
fn pooling_of(header: &Header) -> Option<Pooling> {
    match header {
        Header { is_reranker: true, .. } => Some(Pooling::Rank),
        Header { is_embedding: false, .. } => None,
        Header { has_pooling: true, .. } => Some(Pooling::OfFile),
        Header { .. } => Some(Pooling::Mean),
    }
}

/// Aborts the process if the work panics: without its loops the process is useless, and the service
/// starts a new one.
pub(crate) fn or_abort(work: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
        std::process::abort();
    }
}
