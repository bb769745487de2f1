//! Times and renamed enumerations, with their JSON Schemas. The schemas of IDs, and of enumerations
//! that are serialized under their stored names, are in `domain::schemas`.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use orrery_domain::attempt::Outcome;
use orrery_domain::execution::Status;
use orrery_domain::time::Timestamp;

/// A time in UTC: RFC 3339 with milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(Timestamp);

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self(time)
    }
}

impl From<Time> for Timestamp {
    fn from(time: Time) -> Self {
        time.0
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

/// Domain enumerations whose wire names differ from their stored names.
macro_rules! renamed {
    ($(#[doc = $about:literal] $name:ident: $domain:path, $word:ident [$($variant:ident),+];)+) => {$(
        #[doc = $about]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name($domain);

        impl $name {
            /// Returns the value's name on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                use $domain as Of;
                match self.0 {
                    $(Of::$variant => self.0.$word(),)+
                }
            }
        }
        impl From<$domain> for $name {
            fn from(value: $domain) -> Self {
                Self(value)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                use $domain as Of;
                json_schema!({
                    "type": "string",
                    "enum": [$(Self(Of::$variant).as_str()),+],
                    "description": $about.trim(),
                })
            }
        }
    )+};
}

renamed! {
    /// The status of a prediction.
    PredictionStatus: Status, prediction_word [Created, Processing, Success, Error, Cancelled];
    /// The status of a workflow execution.
    ExecutionStatus: Status, execution_word [Created, Processing, Success, Error, Cancelled];
    /// The status of an attempt.
    AttemptStatus: Outcome, as_str [Running, Success, Error, Cancelled];
}

#[cfg(test)]
mod tests {
    use orrery_domain::classify::ErrorClass;
    use orrery_domain::execution::Source;
    use orrery_domain::file::FileSource;
    use orrery_domain::model::OutputType;
    use orrery_domain::schedule::Overlap;
    use orrery_domain::{bulk, step, workflow};
    use serde_json::{Value, json};

    use super::*;

    /// Checks that schemas and serializers use the same names.
    #[test]
    fn wire_enumerations_match_their_schemas() {
        fn check<T: JsonSchema + Serialize>(all: &[T]) {
            let schema = schemars::schema_for!(T);
            let sent: Vec<Value> = all.iter().map(|value| json!(value)).collect();
            assert_eq!(schema.get("enum"), Some(&Value::from(sent)));
        }
        check(&ErrorClass::ALL);
        check(&[Source::Api, Source::Dashboard, Source::Agent, Source::Schedule, Source::Workflow]);
        check(&Overlap::ALL);
        check(&bulk::Action::ALL);
        check(&bulk::Status::ALL);
        check(&step::EventSource::ALL);
        check(&[FileSource::Upload, FileSource::Output]);
        check(&workflow::Status::ALL);
        check(&Status::ALL.map(PredictionStatus::from));
        check(&Status::ALL.map(ExecutionStatus::from));
        use OutputType as Out;
        check(&[
            Out::String,
            Out::Array,
            Out::Object,
            Out::Number,
            Out::Boolean,
            Out::Image,
            Out::Audio,
            Out::Video,
            Out::File,
        ]);
        use step::Status::{Cancelled, Completed, Failed, Queued, Running, Skipped};
        check(&[Queued, Running, Completed, Failed, Cancelled, Skipped]);
    }

    #[test]
    fn wire_time_serializes_as_printed() {
        let time = Timestamp::from_micros(1_795_132_800_000_000);
        assert_eq!(json!(Time::from(time)), "2026-11-20T00:00:00.000Z");
    }
}
