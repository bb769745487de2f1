//! The filters that a template may use, and how large each makes its value.
//!
//! A filter that is not here is refused: some of those that Jinja knows can make values of any size
//! from a number (`center`, `format`, `batch`).

use minijinja::machinery::ast::{CallArg, Expr};

use super::template_bounds::{ITEM, Kind, QUOTED, Refusal, Shape, count};

/// The most spaces that `indent` and `tojson` put before a line.
const INDENT_MAX: f64 = 32.0;
/// The deepest nesting of JSON.
const NESTING: f64 = 160.0;
/// How many times sorting looks at each element, at most.
const SORTING: f64 = 20.0;
/// Filters that `map` may name: those that make each element not much larger.
const MAPPED: [&str; 9] =
    ["upper", "lower", "title", "capitalize", "trim", "string", "int", "float", "length"];

/// The shape of `of` after the filter. `arguments` is the list of what it is given.
///
/// # Errors
/// A sentence about a filter that is not here, or arguments that have no bound.
pub(super) fn shape(
    name: &str,
    of: Shape,
    written: &[CallArg<'_>],
    arguments: Shape,
) -> Result<Shape, Refusal> {
    if written
        .iter()
        .any(|argument| matches!(argument, CallArg::PosSplat(_) | CallArg::KwargSplat(_)))
    {
        return Err(format!("the arguments of '{name}' must be written out"));
    }
    Ok(match name {
        "length" | "count" | "abs" | "round" | "bool" => Shape::SCALAR,
        // What is no number becomes the argument.
        "int" | "float" if !written.is_empty() => Shape::SCALAR.or(arguments.item()),
        "int" | "float" => Shape::SCALAR,
        "sum" if of.kind == Kind::Scalars && written.is_empty() => Shape::SCALAR,
        "sum" => Shape { kind: Kind::Any, size: of.size + arguments.size, ..of.or(arguments) },
        "upper" | "lower" | "title" | "capitalize" => Shape::text(of.written() * 3.0),
        "trim" | "string" | "safe" => Shape::text(of.written()),
        "escape" | "e" => Shape::text(of.written() * QUOTED),
        "default" | "d" => of.or(arguments.item()),
        "first" | "last" | "min" | "max" | "attr" => of.item(),
        "sort" | "unique" | "reverse" | "list" | "select" | "reject" | "selectattr"
        | "rejectattr" | "items" | "dictsort" | "lines" | "split" => as_list(of),
        "groupby" if written.len() == 1 => as_list(of),
        "map" => mapped(of, written)?,
        // The argument comes between, or in place of, any two letters.
        "join" | "replace" => Shape::text((of.written() + 1.0) * (1.0 + arguments.written())),
        "tojson" if written.is_empty() => Shape::text(of.written() * QUOTED),
        // `true` stands for two spaces.
        "tojson" => {
            let spaces = spaces(name, written, 0.0)? + 2.0;
            Shape::text(of.written() * QUOTED * (1.0 + spaces * NESTING))
        }
        "indent" => Shape::text((of.written() + 1.0) * (1.0 + spaces(name, written, 4.0)?)),
        _ => return Err(format!("the filter '{name}' is not part of this model")),
    })
}

/// The work of applying it, in bytes touched.
pub(super) fn effort(name: &str, of: Shape, arguments: Shape) -> f64 {
    match name {
        "sort" | "unique" | "dictsort" | "groupby" => of.size * SORTING,
        // Each element is compared with the argument.
        "select" | "reject" | "selectattr" | "rejectattr" => of.size * (1.0 + arguments.size),
        _ => of.size + arguments.size,
    }
}

/// A list of its elements; those of a text are its letters or parts.
fn as_list(of: Shape) -> Shape {
    match of.kind {
        Kind::Scalars => of,
        Kind::List => Shape::list(of.size + ITEM, of.element + ITEM),
        Kind::Scalar | Kind::Text | Kind::Any => Shape::list(of.size * (1.0 + ITEM), of.size),
    }
}

fn mapped(of: Shape, written: &[CallArg<'_>]) -> Result<Shape, Refusal> {
    match written {
        [CallArg::Kwarg("attribute", Expr::Const(_))] => Ok(as_list(of)),
        [CallArg::Pos(Expr::Const(name))]
            if name.value.as_str().is_some_and(|name| MAPPED.contains(&name)) =>
        {
            let list = as_list(of);
            Ok(Shape::list(list.size * QUOTED, list.element * QUOTED))
        }
        _ => Err(format!("map takes attribute=\"…\" or one of {}", MAPPED.join(", "))),
    }
}

/// How many spaces are asked for, when that is written out.
fn spaces(name: &str, written: &[CallArg<'_>], default: f64) -> Result<f64, Refusal> {
    let asked = match written.first() {
        None => Some(default),
        Some(CallArg::Pos(number) | CallArg::Kwarg("indent" | "width", number)) => count(number),
        Some(CallArg::Kwarg(..) | CallArg::PosSplat(_) | CallArg::KwargSplat(_)) => None,
    };
    asked
        .filter(|spaces| *spaces <= INDENT_MAX)
        .ok_or_else(|| format!("'{name}' takes up to {INDENT_MAX} spaces, written out"))
}
