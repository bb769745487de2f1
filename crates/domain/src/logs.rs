//! The logs of runs, stored with a prediction or a step. The oldest lines are dropped when the logs
//! are too long.

/// Maximum size of the logs, in bytes; the newest lines are retained.
pub const LOGS_MAX: usize = 16 * 1024;
/// Marks logs whose beginning has been dropped.
const LOGS_CUT: &str = "[…]\n";

/// Appends `more` on a new line. Beyond [`LOGS_MAX`], the oldest lines are dropped.
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
    // Start at a line boundary, unless there is only one line.
    let rest = rest.split_once('\n').map_or(rest, |(_part, lines)| lines);
    *logs = format!("{LOGS_CUT}{rest}");
}
