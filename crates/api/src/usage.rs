//! Usage reports: requests, tokens and cost by key, model, day, month, tag and member, as JSON or
//! CSV.

use std::collections::{BTreeMap, HashMap};

use hyper::StatusCode;
use hyper::header::{CONTENT_DISPOSITION, HeaderValue};

use super::doc::{Doc, Kind, Param, ResponseDoc};
use super::{Context, Services};
use crate::history::each;
use orrery_domain::account::dashboard_key;
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_domain::money::Usd;
use orrery_domain::usage::{Day, Month, NotADay, Sums};
use orrery_http::{Response, response};
use orrery_records::usage::{self, GROUPS_MAX, Grouping, SPAN_DAYS_MAX, Span};
use orrery_wire::usage::{Group, Report};

/// The key name under which a report lists work that was started in the dashboard.
const DASHBOARD: &str = "dashboard";

/// A field by which a report can be grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Day,
    Month,
    Key,
    Member,
    Tag,
    Model,
}

/// The values of `group_by`, in the order of the columns.
const FIELDS: [(&str, Field); 6] = [
    ("day", Field::Day),
    ("month", Field::Month),
    ("key", Field::Key),
    ("member", Field::Member),
    ("tag", Field::Tag),
    ("model", Field::Model),
];

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Csv,
}

const FORMATS: [(&str, Format); 2] = [("json", Format::Json), ("csv", Format::Csv)];

fn fields() -> Vec<&'static str> {
    FIELDS.iter().map(|(name, _)| *name).collect()
}

fn formats() -> Vec<&'static str> {
    FORMATS.iter().map(|(name, _)| *name).collect()
}

pub(crate) const REPORT: Doc = Doc {
    query: &[
        Param::new(
            "from",
            Kind::Day,
            "The first day in UTC; by default, the first day of this month",
        ),
        Param::new("to", Kind::Day, "The last day in UTC; by default, today"),
        Param::new("group_by", Kind::ListOf(fields), "The fields to group by; `key` by default"),
        Param::new("key_id", Kind::Uuid, "Only the usage of this key"),
        Param::new("format", Kind::OneOf(formats), "The format of the report; `json` by default"),
    ],
    responses: &[ResponseDoc::json_or_csv::<Report>(200, "The groups, sorted by their fields")],
    description: "Returns the number of ended model calls, their tokens and their cost, grouped by \
                  key, model, day, calendar month, tag or member. The service counts a call in \
                  the commit that charges it, so the costs of a period equal its charges in the \
                  ledger. Usage by day is kept for 400 days, and usage by month for 37 months. A \
                  report has at most 10,000 rows and covers at most 1,100 days.",
    ..Doc::new("billing", "get_usage", "Get usage by key, model and time")
};

pub(crate) const REPORT_OF: Doc = Doc { id: "get_organization_usage", ..REPORT };

/// One row of a report. Fields by which the report is not grouped are `None`. Rows are sorted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    day: Option<Day>,
    month: Option<Month>,
    key: Option<(Option<String>, Option<KeyId>)>,
    member: Option<Option<String>>,
    tag: Option<Option<String>>,
    model: Option<String>,
}

/// The details of a key that a report can show.
#[derive(Debug, Default)]
struct Facts {
    id: Option<KeyId>,
    name: Option<String>,
    created_by: Option<String>,
    tags: Vec<String>,
}

/// `GET /v1/usage`
pub(crate) async fn report(context: Context) -> Result<Response, crate::Error> {
    let query = &context.request.query;
    let today = Day::of(context.services.clock.now());
    let day = |name: &str| -> Result<Option<Day>, crate::Error> {
        let sentence = |error: NotADay| crate::Error::bad_request(format!("{name} {error}"));
        query.get(name).map(|text| text.parse().map_err(sentence)).transpose()
    };
    let from = day("from")?.unwrap_or_else(|| today.month().first_day());
    let to = day("to")?.unwrap_or_else(|| today.max(from));
    if from > to {
        return Err(crate::Error::bad_request("from must not be after to"));
    }
    if to.number().saturating_sub(from.number()) >= SPAN_DAYS_MAX {
        let sentence = format!("from and to must span at most {SPAN_DAYS_MAX} days");
        return Err(crate::Error::bad_request(sentence));
    }
    let key = query.get("key_id").map(str::parse::<KeyId>).transpose();
    let key = key.map_err(|_no_id| crate::Error::bad_request("key_id must be a UUID"))?;
    let fields = each(query.get("group_by").unwrap_or("key"), "group_by", &FIELDS)?;
    let format = each(query.get("format").unwrap_or("json"), "format", &FORMATS)?;
    let [format] = format[..] else {
        return Err(crate::Error::bad_request("format must be json or csv"));
    };
    let organization = context.organization()?;
    let rows = rows(&context.services, organization, Span { from, to, key }, &fields).await?;
    match format {
        Format::Json => {
            let data = rows.into_iter().map(|(row, sums)| group(row, &sums)).collect();
            Ok(response::json(StatusCode::OK, &Report { data }))
        }
        Format::Csv => Ok(csv_response(&fields, rows)),
    }
}

/// Reads the rows of a report.
async fn rows(
    services: &Services,
    organization: OrganizationId,
    span: Span,
    fields: &[Field],
) -> Result<BTreeMap<Row, Sums>, crate::Error> {
    let has = |field| fields.contains(&field);
    let needs_key = has(Field::Key) || has(Field::Member) || has(Field::Tag);
    let by = Grouping {
        key: needs_key,
        model: has(Field::Model),
        day: has(Field::Day),
        month: has(Field::Month),
    };
    let counters = services.billing.usage();
    let today = Day::of(services.clock.now());
    let groups = counters.report(organization, span, by, today).await?;
    let known = if needs_key { facts(services, organization).await? } else { HashMap::new() };
    let mut rows = BTreeMap::new();
    for (group, sums) in groups {
        let unknown = Facts { id: group.key, ..Facts::default() };
        let key = group.key.and_then(|key| known.get(&key)).unwrap_or(&unknown);
        let tags = match &key.tags[..] {
            _ if !has(Field::Tag) => vec![None],
            [] => vec![Some(None)],
            tags => tags.iter().map(|tag| Some(Some(tag.clone()))).collect(),
        };
        for tag in tags {
            let row = Row {
                day: group.day,
                month: group.month,
                key: has(Field::Key).then(|| (key.name.clone(), key.id)),
                member: has(Field::Member).then(|| key.created_by.clone()),
                tag,
                model: group.model.as_deref().map(str::to_owned),
            };
            rows.entry(row).or_insert_with(Sums::default).add(&sums);
        }
        if rows.len() > GROUPS_MAX {
            return Err(usage::Error::TooManyGroups.into());
        }
    }
    Ok(rows)
}

/// Returns the details of an organization's keys, including deleted keys.
async fn facts(
    services: &Services,
    organization: OrganizationId,
) -> Result<HashMap<KeyId, Facts>, crate::Error> {
    let deleted = services.billing.usage().deleted_keys(organization).await?;
    let deleted = deleted.into_iter().map(|(id, key)| {
        let (name, created_by) = (Some(key.name), Some(key.created_by));
        (id, Facts { id: Some(id), name, created_by, tags: key.tags })
    });
    let keys = services.accounts.keys(organization).await?.into_iter().map(|key| {
        let (name, created_by) = (Some(key.name), Some(key.created_by));
        (key.id, Facts { id: Some(key.id), name, created_by, tags: key.policy.tags })
    });
    let of_dashboard = Facts { name: Some(DASHBOARD.to_owned()), ..Facts::default() };
    let dashboard = (dashboard_key(organization), of_dashboard);
    Ok(deleted.chain(keys).chain([dashboard]).collect())
}

fn group(row: Row, sums: &Sums) -> Group {
    let Row { day, month, key, member, tag, model } = row;
    let (name, id) = key.map_or((None, None), |(name, id)| (Some(name), Some(id)));
    Group {
        day: day.map(|day| day.to_string()),
        month: month.map(|month| month.to_string()),
        key_id: id,
        key: name,
        member,
        tag,
        model,
        requests: sums.requests,
        input_tokens: sums.tokens.input,
        output_tokens: sums.tokens.output,
        cost_usd: sums.cost.dollars(),
    }
}

fn csv_response(fields: &[Field], rows: BTreeMap<Row, Sums>) -> Response {
    let mut text = csv_head(fields);
    for (row, sums) in &rows {
        csv_row(&mut text, fields, row, sums);
    }
    let csv = HeaderValue::from_static("text/csv; charset=utf-8");
    let mut response = response::with_type(StatusCode::OK, csv, text.into());
    let name = HeaderValue::from_static("attachment; filename=\"usage.csv\"");
    response.headers_mut().insert(CONTENT_DISPOSITION, name);
    response
}

fn csv_head(fields: &[Field]) -> String {
    let names = FIELDS.iter().filter(|(_, field)| fields.contains(field));
    let names = names.map(|(name, field)| match field {
        Field::Key => "key_id,key",
        Field::Day | Field::Month | Field::Member | Field::Tag | Field::Model => name,
    });
    let all = names.chain(["requests,input_tokens,output_tokens,cost_usd\r\n"]);
    all.collect::<Vec<_>>().join(",")
}

fn csv_row(out: &mut String, fields: &[Field], row: &Row, sums: &Sums) {
    let text = |text: &Option<Option<String>>| cell(text.as_ref().and_then(Option::as_deref));
    for field in fields {
        let cells = match field {
            Field::Day => row.day.map(|day| day.to_string()).unwrap_or_default(),
            Field::Month => row.month.map(|month| month.to_string()).unwrap_or_default(),
            Field::Key => {
                let (name, id) = row.key.as_ref().map_or((None, None), |(name, id)| {
                    (name.as_deref(), id.map(|id| id.to_string()))
                });
                format!("{},{}", id.unwrap_or_default(), cell(name))
            }
            Field::Member => text(&row.member),
            Field::Tag => text(&row.tag),
            Field::Model => cell(row.model.as_deref()),
        };
        out.push_str(&cells);
        out.push(',');
    }
    let Sums { requests, tokens, cost } = sums;
    let cost: Usd = *cost;
    out.push_str(&format!("{requests},{},{},{cost}\r\n", tokens.input, tokens.output));
}

/// Returns a text as a quoted CSV cell (RFC 4180). Puts an apostrophe before a text that a
/// spreadsheet would run as a formula.
fn cell(text: Option<&str>) -> String {
    let Some(text) = text else { return String::new() };
    let is_formula = text.trim_start().starts_with(['=', '+', '-', '@']);
    let mark = if is_formula { "'" } else { "" };
    format!("\"{mark}{}\"", text.replace('"', "\"\""))
}

impl From<usage::Error> for crate::Error {
    fn from(error: usage::Error) -> Self {
        match error {
            usage::Error::TooManyGroups | usage::Error::TooManyCounters | usage::Error::TooOld => {
                Self::bad_request(error.to_string())
            }
            usage::Error::Storage(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_cells_are_quoted_and_never_formulas() {
        for (text, expected) in [
            ("plain", "\"plain\""),
            ("a,b\"c\"", "\"a,b\"\"c\"\"\""),
            ("=1+1", "\"'=1+1\""),
            ("+1", "\"'+1\""),
            ("-1", "\"'-1\""),
            ("@x", "\"'@x\""),
            ("\t=1", "\"'\t=1\""),
        ] {
            assert_eq!(cell(Some(text)), expected);
        }
        assert_eq!(cell(None), "");
        assert_eq!(
            csv_head(&[Field::Month, Field::Key]),
            "month,key_id,key,requests,input_tokens,output_tokens,cost_usd\r\n"
        );
    }
}
