//! How large a JMESPath query can make its result, and how much work it can be, from its text alone.
//!
//! An expression of a few hundred characters can double its document forty times over. Each node of
//! the parsed expression is therefore given a bound on its result that is linear in the size of what
//! it is applied to; the bounds of the parts add up to that of the whole. A projection applies its
//! right side to parts that together are no larger than its left side, so it stays linear too.
//!
//! The bounds are generous: what they admit is safe, and what a person writes is far below them.

use jmespath::ast::Ast;

/// The bytes that `null` and a comma, or a number and a comma, add to a list.
const NULL: f64 = 5.0;
const NUMBER: f64 = 32.0;
/// What escaping may do to each byte of a text.
const ESCAPED: f64 = 6.0;
/// Comparisons that sorting makes for each element, at most.
const SORTING: f64 = 32.0;

/// A size or an effort that is at most `factor * x + constant`, where x is the size of the input.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Bound {
    factor: f64,
    constant: f64,
}

/// What evaluating an expression on an input of size x comes to.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    /// Bytes of the result, written as JSON.
    size: Bound,
    /// Values and bytes that are touched.
    effort: Bound,
}

/// The largest result, in bytes of JSON, and the most work, in values and bytes touched, of
/// `expression` on a document of `bytes`. `None`: no bound is known.
pub(super) fn of(expression: &Ast, bytes: f64) -> Option<(f64, f64)> {
    let Cost { size, effort } = cost(expression)?;
    Some((size.at(bytes), effort.at(bytes)))
}

impl Bound {
    const INPUT: Self = Self { factor: 1.0, constant: 0.0 };

    const fn constant(constant: f64) -> Self {
        Self { factor: 0.0, constant }
    }

    fn at(self, x: f64) -> f64 {
        self.factor * x + self.constant
    }

    fn plus(self, other: Self) -> Self {
        Self { factor: self.factor + other.factor, constant: self.constant + other.constant }
    }

    fn times(self, by: f64) -> Self {
        Self { factor: self.factor * by, constant: self.constant * by }
    }

    fn larger(self, other: Self) -> Self {
        Self { factor: self.factor.max(other.factor), constant: self.constant.max(other.constant) }
    }

    /// `self` of what is itself bounded by `inner`.
    fn of(self, inner: Self) -> Self {
        inner.times(self.factor).plus(Self::constant(self.constant))
    }

    /// `self` of each element of a list that is bounded by `list`, in sum. A list has no more
    /// elements than bytes.
    fn of_each(self, list: Self) -> Self {
        list.times(self.factor + self.constant)
    }
}

impl Cost {
    /// A result of that size, which took as much work.
    const fn whole(size: Bound) -> Self {
        Self { size, effort: size }
    }

    /// A result of that size, given at once.
    const fn at_once(size: Bound) -> Self {
        Self { size, effort: Bound::constant(1.0) }
    }
}

fn cost(expression: &Ast) -> Option<Cost> {
    Some(match expression {
        Ast::Identity { .. } | Ast::Field { .. } | Ast::Index { .. } => Cost::at_once(Bound::INPUT),
        Ast::Slice { .. } => Cost::whole(Bound::INPUT),
        Ast::Literal { value, .. } => Cost::whole(Bound::constant(length(&value.to_string()))),
        Ast::Subexpr { lhs, rhs, .. } => {
            let (lhs, rhs) = (cost(lhs)?, cost(rhs)?);
            let effort = lhs.effort.plus(rhs.effort.of(lhs.size));
            Cost { size: rhs.size.of(lhs.size), effort }
        }
        Ast::Projection { lhs, rhs, .. } => each(cost(lhs)?, cost(rhs)?, 0.0),
        Ast::ObjectValues { node, .. } | Ast::Flatten { node, .. } => copied(cost(node)?),
        Ast::Or { lhs, rhs, .. } | Ast::And { lhs, rhs, .. } => {
            let (lhs, rhs) = (cost(lhs)?, cost(rhs)?);
            Cost { size: lhs.size.larger(rhs.size), effort: lhs.effort.plus(rhs.effort) }
        }
        Ast::Condition { predicate, then, .. } => {
            let (predicate, then) = (cost(predicate)?, cost(then)?);
            Cost { size: then.size, effort: predicate.effort.plus(then.effort) }
        }
        Ast::Comparison { lhs, rhs, .. } => reduced([cost(lhs)?, cost(rhs)?]),
        Ast::Not { node, .. } => reduced([cost(node)?]),
        Ast::MultiList { elements, .. } => {
            let parts: Option<Vec<Cost>> = elements.iter().map(cost).collect();
            joined(parts?, 0.0)
        }
        Ast::MultiHash { elements, .. } => {
            let keys: f64 = elements.iter().map(|pair| ESCAPED * length(&pair.key) + NULL).sum();
            let parts: Option<Vec<Cost>> = elements.iter().map(|pair| cost(&pair.value)).collect();
            joined(parts?, keys)
        }
        // Only functions take one, and they are looked at there.
        Ast::Expref { .. } => return None,
        Ast::Function { name, args, .. } => function(name, args)?,
    })
}

fn function(name: &str, args: &[Ast]) -> Option<Cost> {
    Some(match (name, args) {
        ("map", [Ast::Expref { ast, .. }, list]) => each(cost(list)?, cost(ast)?, NULL),
        ("sort_by" | "min_by" | "max_by", [list, Ast::Expref { ast, .. }]) => {
            let (list, key) = (cost(list)?, cost(ast)?);
            let keys = key.effort.plus(key.size).of_each(list.size).times(SORTING);
            Cost { size: list.size, effort: list.effort.plus(keys) }
        }
        // A separator that the document gives would make the bound a product.
        ("join", [Ast::Literal { value, .. }, list]) => {
            let list = cost(list)?;
            let size = list.size.times(1.0 + length(&value.to_string()));
            Cost { size, effort: list.effort.plus(size) }
        }
        ("join", _) => return None,
        ("to_string", [value]) => {
            let value = cost(value)?;
            let size = value.size.times(ESCAPED).plus(Bound::constant(2.0));
            Cost { size, effort: value.effort.plus(size) }
        }
        _ => {
            let parts: Option<Vec<Cost>> = args.iter().map(cost).collect();
            of_function(name, parts?)
        }
    })
}

fn of_function(name: &str, parts: Vec<Cost>) -> Cost {
    match name {
        "abs" | "avg" | "ceil" | "contains" | "ends_with" | "floor" | "length" | "starts_with"
        | "sum" | "to_number" | "type" => reduced(parts),
        "sort" => {
            let list = joined(parts, 0.0);
            Cost { size: list.size, effort: list.effort.plus(list.size.times(SORTING)) }
        }
        // The rest gives back what it was given, or parts of it.
        _ => joined(parts, 2.0),
    }
}

/// The right side applied to each element of the left side's result.
fn each(list: Cost, element: Cost, separator: f64) -> Cost {
    let size = element.size.plus(Bound::constant(separator)).of_each(list.size);
    let effort = element.effort.plus(Bound::constant(1.0)).of_each(list.size);
    Cost { size, effort: list.effort.plus(effort) }
}

fn copied(whole: Cost) -> Cost {
    Cost { size: whole.size, effort: whole.effort.plus(whole.size) }
}

/// A number or a truth about the parts.
fn reduced(parts: impl IntoIterator<Item = Cost>) -> Cost {
    let all = joined(parts, 0.0);
    Cost { size: Bound::constant(NUMBER), effort: all.effort }
}

/// The parts beside each other.
fn joined(parts: impl IntoIterator<Item = Cost>, more: f64) -> Cost {
    let empty = Cost::whole(Bound::constant(more + 2.0));
    parts.into_iter().fold(empty, |sum, part| {
        let size = part.size.plus(Bound::constant(NULL));
        Cost { size: sum.size.plus(size), effort: sum.effort.plus(part.effort).plus(size) }
    })
}

#[expect(clippy::cast_precision_loss, reason = "lengths stay far below 2^53")]
const fn length(text: &str) -> f64 {
    text.len() as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bound(expression: &str, document: &str) -> Option<(f64, f64)> {
        of(jmespath::compile(expression).unwrap().as_ast(), length(document))
    }

    #[test]
    fn doublings_are_seen() {
        let document = r#"{"a":1,"b":2}"#;
        for doubling in ["{a:*,b:*}|", "[@,@]|", "[@,@][]|", "map(&[@,@],@)|", "to_string(@)|"] {
            let expression = format!("{}@", doubling.repeat(30));
            let (size, _) = bound(&expression, document).unwrap();
            assert!(size > 1e9, "{doubling}: {size}");
        }
        assert_eq!(bound("join(@[0], @)", document), None);
    }

    #[test]
    fn what_people_write_stays_near_the_documents_size() {
        let document = "x".repeat(100_000);
        for expression in [
            "people[?age > `30` && city == 'Rome'].{name: name, town: city}",
            "sort_by(items, &price)[-1].name",
            "length(orders[].lines[])",
            "{total: sum(lines[*].price), names: join(', ', lines[*].name)}",
            "a.b.c[0].d | [*].e",
        ] {
            let (size, effort) = bound(expression, &document).unwrap();
            assert!(size < 100.0 * 1e5 && effort < 1000.0 * 1e5, "{expression}: {size}, {effort}");
        }
    }

    /// Expressions over the names of the test's documents.
    fn expressions() -> impl Strategy<Value = String> {
        let leaf =
            prop::sample::select(vec!["@", "a", "b", "a.b", "`\"x\\\\\"`", "*", "[]", "[*]"]);
        leaf.prop_map(str::to_owned).prop_recursive(4, 20, 3, |inner| {
            let (one, two) = (inner.clone(), (inner.clone(), inner));
            prop_oneof![
                two.clone().prop_map(|(x, y)| format!("[{x}, {y}]")),
                two.clone().prop_map(|(x, y)| format!("{{a: {x}, b: {y}}}")),
                two.clone().prop_map(|(x, y)| format!("{x} | {y}")),
                two.clone().prop_map(|(x, y)| format!("({x}) || ({y})")),
                two.clone().prop_map(|(x, y)| format!("[?{x} != {y}]")),
                two.prop_map(|(x, y)| format!("map(&{x}, not_null({y}, `[]`)[])")),
                one.clone().prop_map(|x| format!("to_string({x})")),
                one.clone().prop_map(|x| format!("values({x})")),
                one.prop_map(|x| format!("({x})[].b")),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_result_is_larger_than_its_bound(expression in expressions()) {
            let document = r#"{"a":[{"b":"x\"y"},{"b":[1,null]}],"b":{"a":{"b":2}}}"#;
            let Ok(compiled) = jmespath::compile(&expression) else { return Ok(()) };
            let Some((size, _)) = bound(&expression, document) else { return Ok(()) };
            let variable = jmespath::Variable::from_json(document).unwrap();
            if size < 1e7 && let Ok(found) = compiled.search(variable) {
                prop_assert!(length(&found.to_string()) <= size.max(NULL), "{expression}: {size}");
            }
        }
    }
}
