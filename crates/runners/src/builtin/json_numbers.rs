//! Exact numbers in JMESPath. The library computes with 64-bit floating-point numbers, in which
//! different integers beyond 2^53 can compare as equal, and sums of integers become fractions.
//!
//! This module rewrites comparisons as calls to its own functions, and replaces the library's
//! numeric functions. A query fails if an exact result does not exist.

use std::cmp::Ordering;
use std::mem;

use jmespath::ast::{Ast, Comparator};
use jmespath::functions::Function;
use jmespath::{
    Context, ErrorReason, Expression, JmespathError, Rcvar, Runtime, SearchResult, Variable,
    interpret,
};
use serde_json::Number;

use orrery_domain::wide_integer::wide_integer;

/// Integers up to this magnitude are exact as 64-bit floating-point numbers.
const EXACT_MAX: u128 = 1 << 53;
const COMPARATORS: [Comparator; 6] = [
    Comparator::Equal,
    Comparator::NotEqual,
    Comparator::LessThan,
    Comparator::LessThanEqual,
    Comparator::GreaterThan,
    Comparator::GreaterThanEqual,
];

type Args<'a> = &'a [Rcvar];
/// A function that replaces a library function, which it receives as an argument.
type Replacement = fn(&str, &dyn Function, Args<'_>, &mut Context<'_>) -> SearchResult;

const REPLACEMENTS: [(&[&str], Replacement); 4] = [
    (&["max", "max_by", "min", "min_by", "sort", "sort_by"], ordered),
    (&["abs", "avg", "ceil", "floor", "sum"], computed),
    (&["contains"], contains),
    (&["to_number"], to_number),
];

/// Returns a runtime with exact functions.
pub(super) fn runtime() -> Runtime {
    let mut runtime = Runtime::new();
    runtime.register_builtin_functions();
    for (names, replacement) in REPLACEMENTS {
        for name in names {
            let Some(own) = runtime.deregister_function(name) else { continue };
            let function = move |args: Args<'_>, context: &mut Context<'_>| {
                replacement(name, &*own, args, context)
            };
            runtime.register_function(name, Box::new(function));
        }
    }
    for comparator in COMPARATORS {
        let name = function_of(&comparator);
        let function = move |args: Args<'_>, _: &mut Context<'_>| {
            let result = match args {
                [left, right] => compare(&comparator, left, right),
                _ => None,
            };
            Ok(Rcvar::new(result.map_or(Variable::Null, Variable::Bool)))
        };
        runtime.register_function(&name, Box::new(function));
    }
    runtime
}

/// Compiles an expression whose comparisons are exact.
pub(super) fn compile<'r>(
    text: &str,
    runtime: &'r Runtime,
) -> Result<Expression<'r>, JmespathError> {
    let mut ast = jmespath::parse(text)?;
    rewrite(&mut ast, text)?;
    Ok(Expression::new(text, ast, runtime))
}

/// Returns the name of the function for a comparator. The name contains a space, so no expression
/// can call the function.
fn function_of(comparator: &Comparator) -> String {
    format!("compare {comparator:?}")
}

/// Replaces comparisons with calls, and checks the numbers in literals.
fn rewrite(ast: &mut Ast, text: &str) -> Result<(), JmespathError> {
    let parts: Vec<&mut Ast> = match ast {
        Ast::Comparison { lhs, rhs, .. }
        | Ast::Projection { lhs, rhs, .. }
        | Ast::And { lhs, rhs, .. }
        | Ast::Or { lhs, rhs, .. }
        | Ast::Subexpr { lhs, rhs, .. } => vec![lhs, rhs],
        Ast::Condition { predicate, then, .. } => vec![predicate, then],
        Ast::Expref { ast, .. } => vec![ast],
        Ast::Flatten { node, .. } | Ast::Not { node, .. } | Ast::ObjectValues { node, .. } => {
            vec![node]
        }
        Ast::Function { args: parts, .. } | Ast::MultiList { elements: parts, .. } => {
            parts.iter_mut().collect()
        }
        Ast::MultiHash { elements, .. } => elements.iter_mut().map(|one| &mut one.value).collect(),
        Ast::Literal { offset, .. } => {
            let literal = text.get(*offset..).and_then(|rest| rest.strip_prefix('`'));
            let literal = literal.and_then(|rest| rest.split('`').next()).unwrap_or_default();
            if let Some(number) = wide_integer(literal.as_bytes()) {
                let reason = ErrorReason::Parse(wide(number));
                return Err(JmespathError::new(text, *offset, reason));
            }
            Vec::new()
        }
        Ast::Identity { .. } | Ast::Field { .. } | Ast::Index { .. } | Ast::Slice { .. } => {
            Vec::new()
        }
    };
    parts.into_iter().try_for_each(|part| rewrite(part, text))?;
    if let Ast::Comparison { offset, comparator, lhs, rhs } = ast {
        let take = |part: &mut Ast| mem::replace(part, Ast::Identity { offset: 0 });
        let args = vec![take(lhs), take(rhs)];
        *ast = Ast::Function { offset: *offset, name: function_of(comparator), args };
    }
    Ok(())
}

fn wide(number: &str) -> String {
    format!("the number {number} does not fit into 64 bits and would change")
}

fn refuse<T>(context: &Context<'_>, sentence: String) -> Result<T, JmespathError> {
    Err(JmespathError::from_ctx(context, ErrorReason::Parse(sentence)))
}

fn compare(comparator: &Comparator, left: &Variable, right: &Variable) -> Option<bool> {
    let order = match (left, right) {
        (Variable::Number(left), Variable::Number(right)) => Some(order(left, right)),
        _ => None,
    };
    match comparator {
        Comparator::Equal => Some(equal(left, right)),
        Comparator::NotEqual => Some(!equal(left, right)),
        Comparator::LessThan => order.map(Ordering::is_lt),
        Comparator::LessThanEqual => order.map(Ordering::is_le),
        Comparator::GreaterThan => order.map(Ordering::is_gt),
        Comparator::GreaterThanEqual => order.map(Ordering::is_ge),
    }
}

fn equal(left: &Variable, right: &Variable) -> bool {
    match (left, right) {
        (Variable::Number(left), Variable::Number(right)) => order(left, right).is_eq(),
        (Variable::Array(left), Variable::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(one, other)| equal(one, other))
        }
        (Variable::Object(left), Variable::Object(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|((name, one), (other_name, other))| {
                    name == other_name && equal(one, other)
                })
        }
        _ => left == right,
    }
}

fn order(left: &Number, right: &Number) -> Ordering {
    match (integer(left), integer(right)) {
        (Some(left), Some(right)) => left.cmp(&right),
        // A number with a fractional part is below 2^53, so it compares exactly.
        _ => left.as_f64().partial_cmp(&right.as_f64()).unwrap_or(Ordering::Equal),
    }
}

/// Returns the value of an integer, even if it is written as a fraction, such as `1.0`.
fn integer(number: &Number) -> Option<i128> {
    let float = || number.as_f64().filter(|float| float.fract() == 0.0);
    whole(number).or_else(|| format!("{:.0}", float()?).parse().ok())
}

/// Returns the value of a number that is stored as an integer.
fn whole(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

fn numbers(values: &[Rcvar]) -> Option<Vec<&Number>> {
    values.iter().map(|value| as_number(value)).collect()
}

fn as_number(value: &Variable) -> Option<&Number> {
    if let Variable::Number(number) = value { Some(number) } else { None }
}

/// Sorts numbers, or finds the smallest or largest number.
fn ordered(
    name: &str,
    own: &dyn Function,
    args: Args<'_>,
    context: &mut Context<'_>,
) -> SearchResult {
    let items = args.first().and_then(|items| items.as_array()).filter(|items| !items.is_empty());
    let Some(items) = items else { return own.evaluate(args, context) };
    let keys = match args.get(1).map(|key| key.as_expref()) {
        None => items.clone(),
        Some(None) => return own.evaluate(args, context),
        Some(Some(key)) => {
            items.iter().map(|item| interpret(item, key, context)).collect::<Result<_, _>>()?
        }
    };
    let Some(keys) = numbers(&keys) else { return own.evaluate(args, context) };
    let mut pairs: Vec<(&Number, &Rcvar)> = keys.into_iter().zip(items).collect();
    // The sort is stable, so the first of several equal items is the minimum or maximum.
    pairs.sort_by(|(one, _), (other, _)| match name.starts_with("max") {
        true => order(other, one),
        false => order(one, other),
    });
    if name.starts_with("sort") {
        let sorted = pairs.into_iter().map(|(_, item)| Rcvar::clone(item)).collect();
        return Ok(Rcvar::new(Variable::Array(sorted)));
    }
    let first = pairs.first().map(|(_, item)| Rcvar::clone(item));
    Ok(first.unwrap_or_else(|| Rcvar::new(Variable::Null)))
}

/// Computes with integers exactly, and with other numbers as the library does.
fn computed(
    name: &str,
    own: &dyn Function,
    args: Args<'_>,
    context: &mut Context<'_>,
) -> SearchResult {
    let given = match args {
        [value] => value.as_array().map_or(args, Vec::as_slice),
        _ => args,
    };
    let is_list = args.first().is_some_and(|value| value.is_array());
    let Some(given) = numbers(given).filter(|_| is_list == matches!(name, "avg" | "sum")) else {
        return own.evaluate(args, context);
    };
    if given.is_empty() && name == "avg" {
        return Ok(Rcvar::new(Variable::Null));
    }
    let wholes: Option<Vec<i128>> = given.iter().map(|number| whole(number)).collect();
    let exact = wholes.filter(|_| name != "avg").map(|wholes| match name {
        "abs" => wholes.into_iter().map(i128::abs).sum(),
        _ => wholes.into_iter().sum::<i128>(),
    });
    if let Some(exact) = exact {
        return match number(exact) {
            Some(number) => Ok(Rcvar::new(Variable::Number(number))),
            None => refuse(context, wide(&exact.to_string())),
        };
    }
    let inexact = given
        .iter()
        .find(|number| whole(number).is_some_and(|whole| whole.unsigned_abs() > EXACT_MAX));
    if let Some(inexact) = inexact {
        let sentence =
            format!("{name} cannot compute with {inexact}, which is beyond 2^53, exactly");
        return refuse(context, sentence);
    }
    let Ok(result) = own.evaluate(args, context) else {
        return refuse(context, format!("the result of {name} is too large"));
    };
    let rounded = as_number(&result).and_then(integer).and_then(number);
    match rounded.filter(|_| matches!(name, "ceil" | "floor")) {
        Some(rounded) => Ok(Rcvar::new(Variable::Number(rounded))),
        None => Ok(result),
    }
}

fn number(value: i128) -> Option<Number> {
    let signed = i64::try_from(value).map(Number::from);
    signed.or_else(|_large| u64::try_from(value).map(Number::from)).ok()
}

fn contains(
    _name: &str,
    own: &dyn Function,
    args: Args<'_>,
    context: &mut Context<'_>,
) -> SearchResult {
    match args {
        [items, wanted] if items.is_array() => {
            let found =
                items.as_array().is_some_and(|items| items.iter().any(|item| equal(item, wanted)));
            Ok(Rcvar::new(Variable::Bool(found)))
        }
        _ => own.evaluate(args, context),
    }
}

fn to_number(
    _name: &str,
    own: &dyn Function,
    args: Args<'_>,
    context: &mut Context<'_>,
) -> SearchResult {
    let text = args.first().and_then(|text| text.as_string());
    if let Some(number) = text.and_then(|text| wide_integer(text.as_bytes())) {
        return refuse(context, wide(number));
    }
    let result = own.evaluate(args, context)?;
    Ok(if result.is_number() { result } else { Rcvar::new(Variable::Null) })
}
