//! `text-template`: renders a Jinja template. Fuel limits the template's instructions, a writer
//! limits its output, and the worker process limits the memory and time of its values.

use minijinja::{Environment, UndefinedBehavior};
use serde_json::{Value, json};

use super::weight::MIB;
use super::{Builtin, Work, refuse, text};
use crate::rendering;
use orrery_domain::attempt::Failure;
use orrery_domain::model::OutputType;

/// Maximum number of instructions per rendering: some tens of milliseconds if the values are small.
const FUEL_MAX: u64 = 200_000;
/// Maximum size of the values, in bytes of JSON.
const VALUES_MAX: usize = 1024 * 1024;
/// Memory estimate per byte of template and values.
const BYTES_EACH: u64 = 200;
/// Memory estimate for the rendered text and for intermediate values of expressions, in bytes.
const WORKING_MEMORY: u64 = 32 * MIB;
/// Maximum length of the rendered text, in bytes.
const OUTPUT_MAX: usize = 4 * 1024 * 1024;

pub(super) const MODEL: Builtin = Builtin {
    slug: "text-template",
    title: "Text template",
    description: "Renders a Jinja template with the given values.",
    output_type: OutputType::String,
    schema,
    work: Work::Pure { weigh, run: render },
};

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["template"],
        "additionalProperties": false,
        "properties": {
            "template": {
                "type": "string",
                "title": "Template",
                "description": "A Jinja template, such as: Hello {{ name }}! It cannot include other \
                                templates.",
                "maxLength": 100_000,
            },
            "values": {
                "type": "object",
                "title": "Values",
                "description": "The variables of the template.",
                "default": {},
            },
        },
    })
}

fn weigh(input: &Value) -> u64 {
    let values = input.get("values").map_or(0, |values| values.to_string().len());
    let read = text(input, "template").len().saturating_add(values.min(VALUES_MAX)) as u64;
    read.saturating_mul(BYTES_EACH).saturating_add(WORKING_MEMORY)
}

fn render(input: &Value) -> Result<Value, Failure> {
    let source = text(input, "template");
    let values = input.get("values").unwrap_or(&Value::Null);
    if values.to_string().len() > VALUES_MAX {
        return Err(refuse(format!("the values are larger than {VALUES_MAX} bytes")));
    }
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL_MAX));
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let fault =
        |error: &minijinja::Error| refuse(format!("the template cannot be rendered: {error}"));
    let template = environment.template_from_str(source);
    let template = template.map_err(|error| fault(&error))?;
    match rendering::render(&template, values, OUTPUT_MAX) {
        Ok(text) => Ok(text.into()),
        Err(rendering::Error::TooLong(most)) => {
            Err(refuse(format!("the rendered text is longer than {most} bytes")))
        }
        Err(rendering::Error::Template(error)) => Err(fault(&error)),
    }
}
