//! Tests when a `wait` step ends.

use std::borrow::Cow;

use super::*;
use crate::reference::{Field, Scope};
use crate::time::{Now, Timestamp};

struct Given(Value);

impl Scope for Given {
    fn inputs(&self) -> &Value {
        &self.0
    }
    fn execution_id(&self) -> String {
        String::new()
    }
    fn item(&self, _name: &str) -> Option<&Value> {
        None
    }
    fn step(&self, _id: &str, _field: Field) -> Option<Cow<'_, Value>> {
        None
    }
}

#[test]
fn wait_step_ends_at_configured_time() {
    let now: Timestamp = "2026-11-20T09:30:00Z".parse().unwrap();
    for (wait, given, expect) in [
        (json!({"seconds": 1.5}), json!(null), "2026-11-20T09:30:01.500Z"),
        (json!({"seconds": 0}), json!(null), "2026-11-20T09:30:00.000Z"),
        (json!({"seconds": "{{inputs.x}}"}), json!(60), "2026-11-20T09:31:00.000Z"),
        (
            json!({"seconds": "{{inputs.x}}"}),
            json!("60"),
            "seconds must be a number from 0 to 31622400",
        ),
        (
            json!({"seconds": "{{inputs.x}}"}),
            json!(-1),
            "seconds must be a number from 0 to 31622400",
        ),
        (json!({"until": "2026-11-20T12:30:00+02:00"}), json!(null), "2026-11-20T10:30:00.000Z"),
        (json!({"until": "2020-01-01T00:00:00Z"}), json!(null), "2026-11-20T09:30:00.000Z"),
        (
            json!({"until": "{{inputs.x}}T00:00:00Z"}),
            json!("2026-12-24"),
            "2026-12-24T00:00:00.000Z",
        ),
        (
            json!({"until": "{{inputs.x}}"}),
            json!(7),
            "until must be an RFC 3339 time such as 2026-11-20T09:30:00Z",
        ),
        (
            json!({"until": "2100-01-01T00:00:00Z"}),
            json!(null),
            "until is more than 366 days ahead",
        ),
        (json!({"until": "{{inputs.y}}"}), json!(7), "{{inputs.y}} resolves to nothing"),
    ] {
        let plan = plan_of(json!([with(with(wait, "id", json!("w")), "type", json!("wait"))]));
        let Kind::Wait(wait) = &plan.step("w").unwrap().kind else { panic!("no wait") };
        let end = wait.end(&Given(json!({"x": given})), Now::at(now));
        let said = end.map_or_else(|error| error.to_string(), |end| end.to_string());
        assert_eq!(said, expect);
    }
}
