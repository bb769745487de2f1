//! `orrery usage`: prints the usage of an organization by key, model and time.

use clap::ValueEnum;
use serde_json::Value;

use super::chain::query;
use super::output::{self, Column, Output};
use super::{Shape, service};
use orrery_config::Config;
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_domain::usage::Day;
use orrery_wire::usage::{Group, Report};

/// A field by which the report is grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Key,
    Model,
    Day,
    Month,
    Tag,
    Member,
}

#[derive(Debug, clap::Args)]
pub(super) struct Usage {
    /// The organization
    #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
    org: String,
    /// The first day (UTC) [default: the first of this month]
    #[arg(long, value_name = "DAY")]
    from: Option<Day>,
    /// The last day (UTC) [default: today]
    #[arg(long, value_name = "DAY")]
    to: Option<Day>,
    /// Fields to group by, separated by commas
    #[arg(long, value_name = "FIELDS", value_enum, value_delimiter = ',', default_value = "key")]
    by: Vec<By>,
    /// Only the usage of the key with this id
    #[arg(long, value_name = "ID")]
    key: Option<String>,
    /// Print CSV instead of a table
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    shape: Shape,
}

pub(super) async fn run(asked: Usage, config: &Config) -> anyhow::Result<()> {
    let mut admin = service::admin(config).await?;
    admin.act_for(&asked.org);
    let names = asked.by.iter().filter_map(ValueEnum::to_possible_value);
    let names: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
    let by = names.join(",");
    let [from, to] = [asked.from, asked.to].map(|day| day.map(|day| day.to_string()));
    let mut parameters = vec![("group_by", by.as_str())];
    parameters.extend(from.as_deref().map(|day| ("from", day)));
    parameters.extend(to.as_deref().map(|day| ("to", day)));
    parameters.extend(asked.key.as_deref().map(|key| ("key_id", key)));
    if asked.csv {
        parameters.push(("format", "csv"));
        let path = format!("/api/base/v1/usage?{}", query(&parameters));
        let mut text = Vec::new();
        admin.download(&path, &mut text, &mut |_bytes| {}).await?;
        return output::raw(&text);
    }
    let answer = admin.get(&format!("/api/base/v1/usage?{}", query(&parameters))).await?;
    let report: Report = super::key::understood(answer)?;
    let fields = shown_fields(&asked.by);
    let sums = ["REQUESTS", "INPUT", "OUTPUT", "USD"].map(Column::Number);
    let columns: Vec<Column> =
        fields.iter().map(|(head, _)| Column::Text(head)).chain(sums).collect();
    let rows = report.data.iter().map(|group| row(group, &fields));
    Output::new(asked.shape.json).show(&report, &columns, rows)
}

/// Returns the heading and the field of each column of the groups, in the order of the columns.
fn shown_fields(by: &[By]) -> Vec<(&'static str, &'static str)> {
    let all = [
        (By::Day, "DAY", "day"),
        (By::Month, "MONTH", "month"),
        (By::Key, "KEY", "key"),
        (By::Key, "KEY ID", "key_id"),
        (By::Member, "MEMBER", "member"),
        (By::Tag, "TAG", "tag"),
        (By::Model, "MODEL", "model"),
    ];
    let shown = all.into_iter().filter(|(field, ..)| by.contains(field));
    shown.map(|(_, head, name)| (head, name)).collect()
}

fn row(group: &Group, fields: &[(&str, &str)]) -> Vec<String> {
    let value = serde_json::to_value(group).unwrap_or_default();
    let text = |name: &str| match value.get(name) {
        Some(Value::String(text)) => text.clone(),
        _ => "-".to_owned(),
    };
    let mut cells: Vec<String> = fields.iter().map(|(_, name)| text(name)).collect();
    cells.extend([group.requests, group.input_tokens, group.output_tokens].map(|n| n.to_string()));
    cells.push(format!("{:.6}", group.cost_usd));
    cells
}
