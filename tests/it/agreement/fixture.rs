//! A service with one resource of each kind, and requests about these resources.

use hyper::Method;
use orrery_api::Role;
use orrery_domain::key_policy::{KeyPolicy, Scope};
use serde_json::{Value, json};

use super::Operation;
use crate::support::dashboard::{Person, cookie_of};
use crate::support::{Service, Upstream};

/// The configuration: no rate limit that the probes reach, and an agent.
const CONFIG: &str = "[agent]\nmodel = 'far'\n[dashboard]\nadmin_api = true\n\
                      [limits.rate]\nrequests_per_second = 100000\nburst = 100000\n";

/// The ID of a job that does not exist.
const NO_ID: &str = "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f";

pub(super) struct Fixture {
    role: Role,
    service: Service,
    /// Answers as the upstream of chats, and as the model of the agent.
    _upstream: Upstream,
    admin: String,
    /// An API key with the scope `worker`.
    worker: String,
    owner: Person,
    member: String,
    workflow: String,
    execution: String,
    schedule: String,
    endpoint: String,
}

impl Fixture {
    pub(super) async fn start(role: Role) -> Self {
        let upstream = Upstream::start().await;
        upstream.follows(|request| {
            let usage = json!({"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10});
            let message = json!({"role": "assistant", "content": "Done."});
            let choices = json!([{"index": 0, "message": message, "finish_reason": "stop"}]);
            let texts = request["input"].as_array().map_or(1, Vec::len);
            let vector = |index| json!({"index": index, "embedding": [0.5]});
            let data: Vec<Value> = (0..texts).map(vector).collect();
            (200, json!({"choices": choices, "data": data, "usage": usage}))
        });
        let service = Service::configured(&(upstream.config("") + CONFIG)).await;
        let (_, admin) =
            service.running.services.accounts.create_admin_key("test", "test", None).await.unwrap();
        let policy = KeyPolicy { scopes: Some([Scope::Worker].into()), ..KeyPolicy::default() };
        let (_, worker) = service
            .running
            .services
            .accounts
            .create_key_with(service.organization.id, "worker", "test", None, policy)
            .await
            .unwrap();
        service.running.services.accounts.create_organization("spare").await.unwrap();
        let owner = service.owner().await;
        service.member(&owner, "member@example.com").await;
        let member = service.id_of(&owner, "member@example.com").await;
        let workflow = workflow(&service).await;
        let execution = service.trigger(&workflow, json!({})).await;
        let shared = json!({
            "version_id": "v1", "definition": {"steps": steps()}, "allowed_to_share": true,
        });
        let path = format!("/workflows/{workflow}/versions/v1");
        service.flows(Method::PUT, &path).json(&shared).send().await.expect(200);
        let schedule = json!({"cron": "@yearly"});
        let path = format!("/workflows/{workflow}/schedules");
        let schedule = service.flows(Method::POST, &path).json(&schedule).send().await.expect(201);
        let endpoint = json!({"url": "http://127.0.0.1:1/"});
        let endpoint = service.post("/v1/webhook-endpoints", &endpoint).send().await.expect(201);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Self {
            role,
            _upstream: upstream,
            admin,
            worker,
            owner,
            member,
            workflow,
            execution,
            schedule: text(&schedule["schedule_id"]),
            endpoint: text(&endpoint["id"]),
            service,
        }
    }

    pub(super) async fn document(&self) -> Value {
        self.service.ask(self.role, Method::GET, "/openapi.json").send().await.expect(200)
    }

    /// Sends a body; returns the status and the text of the response.
    pub(super) async fn send(&mut self, operation: &Operation<'_>, body: String) -> (u16, String) {
        let path = self.path(operation).await;
        let Self { service, role, owner, worker, .. } = self;
        let method = operation.method.clone();
        let has_scheme = |name: &str| {
            operation.security.as_array().unwrap().iter().any(|one| one.get(name).is_some())
        };
        let ask = if has_scheme("Session") {
            service.asks(owner, method, &path)
        } else if path.starts_with("/v1/workers/") {
            service.ask(*role, method, &path).key(worker)
        } else if *role != Role::Dashboard {
            service.ask(*role, method, &path).key(&service.key)
        } else if has_scheme("Bearer") {
            let ask = service.ask(*role, method, &path);
            ask.header("authorization", format!("Bearer {}", self.admin))
        } else {
            service.page_asks(method, &path)
        };
        let body = body.replace("smk_…", &service.key);
        let ask = ask.header("content-type", "application/json").body(body);
        let answer = ask.undocumented().send().await;
        // A changed password ends all sessions but the new one.
        if has_scheme("Session") && answer.headers.contains_key("set-cookie") {
            owner.cookie = cookie_of(answer.header("set-cookie"));
        }
        (answer.status, answer.text)
    }

    async fn path(&self, operation: &Operation<'_>) -> String {
        let changed = ["update_workflow", "put_version"].contains(&operation.id);
        // The version in the example; all other requests use the stored workflow's versions.
        let version = if operation.id == "put_version" { "v2" } else { "v1" };
        let workflow = if changed { workflow(&self.service).await } else { self.workflow.clone() };
        // Limits on the other organization would cause later probes to be refused.
        let organization = if operation.id.contains("limits") || operation.id == "put_organization"
        {
            "spare"
        } else {
            "default"
        };
        operation
            .path
            .replace("{workflow}", &workflow)
            .replace("{version}", version)
            .replace("{execution}", &self.execution)
            .replace("{schedule}", &self.schedule)
            .replace("{endpoint}", &self.endpoint)
            .replace("{organization}", organization)
            .replace("{owner}", "local")
            .replace("{name}", "a-name")
            .replace("{job}", NO_ID)
            .replace("{id}", &self.member)
    }
}

async fn workflow(service: &Service) -> String {
    service.workflow(steps()).await
}

/// Returns steps, one of which waits for an event.
fn steps() -> Value {
    json!([{"step_id": "ask", "type": "wait", "event": {"name": "a-name"}}])
}
