//! Tests of batches with scripted answers: each line is answered exactly once despite crashes;
//! cancellation, expiry and invalid files.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::lines::{Answered, Answering, Answers, Request};
use super::{Batches, Delays, Error, New, OPEN_MAX, Progress, input};
use orrery_domain::batch::{BYTES_MAX, Endpoint, LINE_MAX, LINES_MAX, LineAnswer, Status, WINDOW};
use orrery_domain::execution::Source;
use orrery_domain::ids::{FileId, OrganizationId};
use orrery_records::files::{Files, Report};
use orrery_runtime::{Clock, Tasks, new_id};
use orrery_storage::{Commit, Key, Options, Page, Store, Table};

/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(120);

/// Answers a line with the line's own body, unless the body requests a different answer.
#[derive(Debug, Default)]
struct Echo {
    /// The bodies of all calls.
    calls: Mutex<Vec<Value>>,
    store: Mutex<Option<Store>>,
}

impl Answers for Echo {
    fn answer(&self, request: Request) -> Answering<'_> {
        Box::pin(async move {
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            let is_first = !self.calls.lock().unwrap().contains(&body);
            self.calls.lock().unwrap().push(body.clone());
            let raw = |value: &Value| RawValue::from_string(format!("{value:#}")).unwrap();
            let answer = raw(&json!({"echo": body}));
            match body["say"].as_str() {
                Some("refuse") => return Answered::Refused { status: 400, body: answer },
                Some("wait") => return Answered::Later,
                Some("fail once") if is_first => return Answered::Called,
                Some("hang") => std::future::pending().await,
                _ => {}
            }
            let status = if body["say"] == "fail" { 500 } else { 200 };
            let store = self.store.lock().unwrap().clone().unwrap();
            let commit = request.record.writes(status, "an-id", &answer).await.unwrap();
            // If the batch was deleted in the meantime, the commit fails and no answer is stored.
            let _taken = store.try_commit(commit).await.unwrap();
            Answered::Called
        })
    }
}

struct Fixture {
    folder: TempDir,
    store: Store,
    clock: Clock,
    files: Files,
    batches: Batches,
    answers: std::sync::Arc<Echo>,
    tasks: Tasks,
    organization: OrganizationId,
}

fn open(folder: &TempDir, organization: OrganizationId, clock: Clock) -> Fixture {
    let options = Options { folder: folder.path().join("data"), inline_bytes: 1024 };
    let store = Store::open(&options).unwrap();
    let files = Files::scratch(&options.folder, store.clone());
    let short = Duration::from_millis(5);
    let delays = Delays { first_backoff: short, blocked: short };
    let batches = Batches::new(store.clone(), clock.clone(), files.clone(), delays);
    let answers = std::sync::Arc::new(Echo::default());
    *answers.store.lock().unwrap() = Some(store.clone());
    let folder = tempfile::tempdir_in(folder.path()).unwrap();
    let tasks = Tasks::new();
    Fixture { folder, store, clock, files, batches, answers, tasks, organization }
}

impl Fixture {
    fn run(&self) {
        let running = self.batches.clone().run(self.answers.clone(), self.tasks.clone(), || false);
        self.tasks.spawn(running);
    }

    /// Stores an input file with these lines.
    async fn file(&self, text: String) -> FileId {
        let report = Report {
            id: new_id(),
            organization: self.organization,
            filename: "in.jsonl".to_owned(),
            content_type: "application/jsonl",
            purpose: "batch",
        };
        let source = Box::new(Cursor::new(text.into_bytes()));
        self.files.keep_report(report, source, Commit::new()).await.unwrap().id
    }

    async fn create(&self, input_file: FileId) -> Result<orrery_domain::batch::Batch, Error> {
        let new = New {
            id: new_id(),
            organization: self.organization,
            key: new_id(),
            source: Source::Api,
            endpoint: Endpoint::ChatCompletions,
            input_file,
            metadata: BTreeMap::new(),
        };
        self.batches.create(new, Commit::new()).await
    }

    async fn started(&self, lines: &[Value]) -> orrery_domain::batch::Batch {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let file = self.file(text).await;
        self.create(file).await.unwrap()
    }

    async fn until(
        &self,
        batch: &orrery_domain::batch::Batch,
        is_met: impl Fn(&Progress) -> bool,
    ) -> Progress {
        let waiting = async {
            loop {
                let progress = self.batches.get(self.organization, batch.id).await.unwrap();
                if is_met(&progress) {
                    return progress;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the batch gets there")
    }

    async fn ended(&self, batch: &orrery_domain::batch::Batch) -> Progress {
        let progress = self.until(batch, |progress| progress.batch.status.is_final()).await;
        let waiting = async {
            // The rows of a batch are deleted after its end.
            while self.rows(Table::BatchOpen).await + self.rows(Table::BatchLine).await > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the rows are deleted");
        progress
    }

    async fn rows(&self, table: Table) -> usize {
        self.store.page(Page::from(Key::table(table))).await.unwrap().len()
    }

    async fn lines(&self, file: Option<FileId>) -> Vec<Value> {
        let found = self.files.find(self.organization, file.unwrap()).await.unwrap();
        let text = std::fs::read_to_string(found.unwrap().1).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn fixture() -> (TempDir, Fixture) {
    let folder = tempfile::tempdir().unwrap();
    let fixture = open(&folder, new_id(), Clock::system());
    (folder, fixture)
}

fn line(id: &str, body: &Value) -> Value {
    json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body})
}

#[tokio::test]
async fn batch_answers_each_line_into_its_files() {
    let (_folder, fixture) = fixture();
    fixture.run();
    let lines = [
        line("one", &json!({"say": "yes"})),
        line("two", &json!({"say": "refuse"})),
        line("three", &json!({"say": "fail once"})),
        line("four", &json!({"say": "fail"})),
        // The answer is larger than a row of the store can be.
        line("five", &json!({"say": "x".repeat(5000)})),
    ];
    let batch = fixture.started(&lines).await;
    let ended = fixture.ended(&batch).await;
    assert_eq!(ended.batch.status, Status::Completed);
    assert_eq!((ended.batch.total, ended.completed, ended.failed), (5, 3, 2));
    let output = fixture.lines(ended.batch.output_file).await;
    let ids: Vec<_> = output.iter().map(|line| line["custom_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["one", "three", "five"]);
    assert_eq!(output[0]["response"]["body"]["echo"]["say"], "yes");
    assert_eq!(
        (&output[0]["response"]["status_code"], &output[0]["error"]),
        (&json!(200), &Value::Null)
    );
    let errors = fixture.lines(ended.batch.error_file).await;
    let statuses: Vec<_> = errors.iter().map(|line| &line["response"]["status_code"]).collect();
    assert_eq!(statuses, [400, 500]);
    assert_eq!(fixture.store.payload_usage(fixture.organization).await.unwrap(), 0);
    fixture.tasks.stop();
}

#[tokio::test]
async fn batch_with_invalid_lines_names_each_and_answers_none() {
    let (_folder, fixture) = fixture();
    fixture.run();
    let valid = line("one", &json!({}));
    let mut get = line("two", &json!({}));
    get["method"] = json!("GET");
    let mut other = line("three", &json!({}));
    other["url"] = json!("/v1/embeddings");
    let texts = [
        valid.to_string(),
        "not json".to_owned(),
        get.to_string(),
        other.to_string(),
        line("four", &json!([true])).to_string(),
        line("five", &json!({"stream": true})).to_string(),
        line("", &json!({})).to_string(),
        valid.to_string(),
        json!({"custom_id": "six"}).to_string(),
    ];
    let file = fixture.file(format!("\u{feff}{}\r\n\n", texts.join("\n"))).await;
    let batch = fixture.create(file).await.unwrap();
    let ended = fixture.ended(&batch).await;
    assert_eq!(ended.batch.status, Status::Failed);
    let found: Vec<_> =
        ended.batch.errors.iter().map(|error| (error.line.unwrap(), error.code.as_str())).collect();
    assert_eq!(
        found,
        [
            (2, "invalid_json_line"),
            (3, "invalid_method"),
            (4, "invalid_url"),
            (5, "invalid_body"),
            (6, "invalid_body"),
            (7, "invalid_custom_id"),
            (8, "duplicate_custom_id"),
            (9, "invalid_json_line"),
        ]
    );
    assert!(fixture.answers.calls.lock().unwrap().is_empty());
    fixture.tasks.stop();
}

#[tokio::test]
async fn batch_file_limits_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in");
    let check = async |text: String| {
        std::fs::write(&path, text).unwrap();
        let checked = input::check(path.clone(), Endpoint::ChatCompletions).await.unwrap();
        checked.map(|input| input.len()).map_err(|errors| errors[0].code.clone())
    };
    assert_eq!(check("\n \n".to_owned()).await.unwrap_err(), "empty_file");
    let long = line("one", &json!({"x": "y".repeat(LINE_MAX)})).to_string();
    assert_eq!(check(long).await.unwrap_err(), "line_too_long");
    std::fs::File::create(&path).unwrap().set_len(BYTES_MAX).unwrap();
    let one = input::check(path.clone(), Endpoint::ChatCompletions).await.unwrap();
    assert_eq!(one.unwrap_err()[0].code, "line_too_long");
    let many = |count: usize| -> String {
        (0..count).map(|id| format!("{}\n", line(&id.to_string(), &json!({})))).collect()
    };
    assert_eq!(check(many(LINES_MAX)).await, Ok(u32::try_from(LINES_MAX).unwrap()));
    assert_eq!(check(many(LINES_MAX + 1)).await.unwrap_err(), "too_many_lines");
}

#[tokio::test]
async fn batch_cancelled_keeps_its_answers_and_starts_no_more_lines() {
    let (_folder, fixture) = fixture();
    let mut lines: Vec<_> = (0..5).map(|id| line(&id.to_string(), &json!({"n": id}))).collect();
    // Blocks the batch.
    lines.push(line("wait", &json!({"say": "wait"})));
    fixture.run();
    let batch = fixture.started(&lines).await;
    fixture.until(&batch, |progress| progress.completed == 5).await;
    let cancelled = fixture.batches.cancel(fixture.organization, batch.id).await.unwrap();
    assert!(cancelled.batch.cancelling_at.is_some());
    let ended = fixture.ended(&batch).await;
    assert_eq!(ended.batch.status, Status::Cancelled);
    assert_eq!(fixture.lines(ended.batch.output_file).await.len(), 5);
    assert_eq!(ended.batch.error_file, None);
    let again = fixture.batches.cancel(fixture.organization, batch.id).await.unwrap();
    assert_eq!(again.batch.status, Status::Cancelled);
    let foreign = fixture.batches.cancel(new_id(), batch.id).await;
    assert!(matches!(foreign, Err(Error::NotFound)));
    fixture.tasks.stop();
}

#[tokio::test]
async fn batch_expires_after_its_window() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::scripted("2026-11-20T09:30:00Z".parse().unwrap());
    let fixture = open(&folder, new_id(), clock);
    fixture.run();
    let lines = [line("a", &json!({"say": "yes"})), line("b", &json!({"say": "wait"}))];
    let batch = fixture.started(&lines).await;
    fixture.until(&batch, |progress| progress.completed == 1).await;
    fixture.clock.advance(WINDOW);
    let ended = fixture.ended(&batch).await;
    assert_eq!(ended.batch.status, Status::Expired);
    assert_eq!(fixture.lines(ended.batch.output_file).await.len(), 1);
    let errors = fixture.lines(ended.batch.error_file).await;
    assert_eq!((&errors[0]["custom_id"], &errors[0]["response"]), (&json!("b"), &Value::Null));
    assert_eq!(errors[0]["error"]["code"], "batch_expired");
    fixture.tasks.stop();
}

#[tokio::test]
async fn batch_continues_after_a_crash_without_repeating_lines() {
    let folder = tempfile::tempdir().unwrap();
    let organization = new_id();
    let batch = {
        let fixture = open(&folder, organization, Clock::system());
        fixture.run();
        let mut lines: Vec<_> =
            (0..200).map(|id| line(&id.to_string(), &json!({"n": id}))).collect();
        lines.insert(150, line("wait", &json!({"say": "wait"})));
        let batch = fixture.started(&lines).await;
        fixture.until(&batch, |progress| progress.completed >= 100).await;
        fixture.tasks.stop();
        assert!(fixture.tasks.ended(PATIENCE).await);
        batch
    };
    let fixture = open(&folder, organization, Clock::system());
    let before = fixture.batches.get(organization, batch.id).await.unwrap().completed;
    fixture.run();
    let done = fixture.until(&batch, |progress| progress.completed == 200).await;
    assert_eq!(done.batch.status, Status::InProgress);
    let calls = fixture.answers.calls.lock().unwrap().clone();
    let repeated = calls.iter().filter(|body| body["say"] != "wait").count();
    assert_eq!(u64::try_from(repeated).unwrap(), 200 - before);
    fixture.batches.cancel(organization, batch.id).await.unwrap();
    let ended = fixture.ended(&batch).await;
    assert_eq!(fixture.lines(ended.batch.output_file).await.len(), 200);
    fixture.tasks.stop();
}

#[tokio::test]
async fn batch_ends_when_its_input_file_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let organization = new_id();
    let batch = {
        let fixture = open(&folder, organization, Clock::system());
        fixture.run();
        let lines = [line("a", &json!({})), line("b", &json!({"say": "wait"}))];
        let batch = fixture.started(&lines).await;
        fixture.until(&batch, |progress| progress.completed == 1).await;
        fixture.tasks.stop();
        assert!(fixture.tasks.ended(PATIENCE).await);
        batch
    };
    let fixture = open(&folder, organization, Clock::system());
    fixture.files.delete(organization, batch.input_file).await.unwrap();
    fixture.run();
    let ended = fixture.ended(&batch).await;
    assert_eq!(ended.batch.status, Status::Failed);
    assert_eq!(ended.batch.errors[0].code, "input_file_deleted");
    assert_eq!(fixture.lines(ended.batch.output_file).await.len(), 1);
    fixture.tasks.stop();
}

#[tokio::test]
async fn batches_are_limited_and_erased_with_their_organization() {
    let (_folder, fixture) = fixture();
    let file = fixture.file(line("a", &json!({})).to_string()).await;
    for _ in 0..OPEN_MAX {
        fixture.create(file).await.unwrap();
    }
    assert!(matches!(fixture.create(file).await, Err(Error::TooMany)));
    assert!(matches!(fixture.create(new_id()).await, Err(Error::NoFile(_))));
    let page = fixture.batches.list(fixture.organization, None, 10).await.unwrap();
    assert!(page.has_more && page.batches.len() == 10);
    fixture.batches.erase(fixture.organization).await.unwrap();
    for table in [Table::Batch, Table::BatchOpen, Table::BatchLine, Table::BatchCount] {
        assert_eq!(fixture.rows(table).await, 0, "{table:?}");
    }
    assert!(fixture.folder.path().exists());
}

/// Golden bytes of the first release with batches: a changed encoding needs a new record version
/// and a migration.
#[test]
fn batch_rows_match_golden_bytes() {
    let golden = concat!(
        "\u{1}{\"id\":\"03030303-0303-0303-0303-030303030303\",",
        "\"organization\":\"01010101-0101-0101-0101-010101010101\",",
        "\"key\":\"02020202-0202-0202-0202-020202020202\",\"source\":\"api\",",
        "\"endpoint\":\"/v1/chat/completions\",",
        "\"input_file\":\"04040404-0404-0404-0404-040404040404\",\"metadata\":{\"a\":\"b\"},",
        "\"status\":\"failed\",\"total\":7,",
        "\"errors\":[{\"code\":\"c\",\"message\":\"m\",\"line\":1,\"param\":\"p\"}],",
        "\"output_file\":\"05050505-0505-0505-0505-050505050505\",",
        "\"error_file\":\"06060606-0606-0606-0606-060606060606\",\"created_at\":1,",
        "\"expires_at\":2,\"in_progress_at\":3,\"cancelling_at\":4,\"finalizing_at\":5,",
        "\"ended_at\":6}"
    );
    let batch: orrery_domain::batch::Batch =
        orrery_storage::record::decode(golden.as_bytes()).unwrap();
    let bytes = orrery_storage::record::encode(&batch).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), golden);
    let golden = "\u{1}{\"line\":{\"inline\":{\"id\":1}},\"is_error\":true}";
    let answer: LineAnswer = orrery_storage::record::decode(golden.as_bytes()).unwrap();
    let bytes = orrery_storage::record::encode(&answer).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), golden);
}
