//! What runs write beside their output, as it is kept with a prediction or a step: the end of it.

/// Bytes of logs that are kept: the newest ones.
pub const LOGS_MAX: usize = 16 * 1024;
/// Precedes logs whose beginning is not kept.
const LOGS_CUT: &str = "[…]\n";

/// Puts `more` behind what is there, on a line of its own. Past [`LOGS_MAX`] the oldest go.
pub fn append_logs(logs: &mut Option<String>, more: Option<String>) {
    let Some(more) = more.filter(|more| !more.is_empty()) else { return };
    let logs = match logs {
        Some(earlier) => {
            earlier.push('\n');
            earlier.push_str(&more);
            earlier
        }
        none => none.insert(more),
    };
    if logs.len() <= LOGS_MAX {
        return;
    }
    let from = logs.len() - LOGS_MAX + LOGS_CUT.len();
    let rest = (from..).find_map(|from| logs.get(from..)).unwrap_or_default();
    // From the beginning of a line, unless it is one line alone.
    let rest = rest.split_once('\n').map_or(rest, |(_part, lines)| lines);
    *logs = format!("{LOGS_CUT}{rest}");
}
