//! How large the values of a Jinja template can become, found out before it runs.
//!
//! The engine bounds how many instructions a template takes, not what each of them costs: forty
//! times `x ~ x` fill any memory, and a chain of ten thousand operators overflows the stack of
//! whoever parses it. So the tokens are counted first, then every expression of the parsed template
//! is given a bound on the size of its value, from the sizes of the values that it names. What can
//! grow without such a bound (captured blocks, variables that grow in a loop, multiplied texts) is
//! refused in words that say what to write instead.
//!
//! The bounds are generous: what they admit is safe, and what a person writes is far below them.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, ForLoop, Stmt};
use minijinja::machinery::{self, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use serde_json::Value;

use super::template_filters;

/// The most tokens between `{{` and `}}`: each may be a level of the parsed expression.
const TAG_TOKENS_MAX: usize = 400;
/// The most `elif`s: each is a level of the parsed template.
const ELIF_MAX: usize = 100;
/// The deepest nesting of loops; each is looked at twice within the one around it.
const LOOPS_MAX: usize = 6;
/// Expressions that are looked at.
const STEPS_MAX: usize = 500_000;
/// The largest value that a template may be able to make, in bytes.
const VALUE_MAX: f64 = 16.0 * 1024.0 * 1024.0;

/// What each value in a list takes beside its text.
pub(super) const ITEM: f64 = 16.0;
/// A number's longest text.
const NUMBER: f64 = 330.0;
/// What quoting and escaping may do to each byte of a text.
pub(super) const QUOTED: f64 = 6.0;
/// The most numbers that `range` gives.
const RANGE_MAX: f64 = 100_000.0;
/// Fields of the engine's own objects, which are no numbers.
const OWN_FIELDS: [&str; 6] = ["previtem", "nextitem", "grouper", "list", "cycle", "changed"];

/// What is known of an expression's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shape {
    pub kind: Kind,
    /// Bytes of the value, at most.
    pub size: f64,
    /// Bytes of each of its elements, at most.
    pub element: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A number, a truth or nothing.
    Scalar,
    Text,
    /// A list of scalars.
    Scalars,
    /// A list or an object.
    List,
    Any,
}

/// A refusal, in a sentence.
pub(super) type Refusal = String;

/// The most work that one instruction of the template can be, in bytes touched.
///
/// # Errors
/// A sentence about what has no bound.
pub(super) fn check(template: &str, values: &Value) -> Result<f64, Refusal> {
    let has_maps = check_tokens(template)?;
    let syntax = SyntaxConfig::default();
    let parsed = machinery::parse(template, "template", syntax).map_err(|e| e.to_string())?;
    let mut check = Check::new(values);
    check.has_maps = has_maps;
    check.statement(&parsed)?;
    Ok(check.effort)
}

/// Bounds the depth to which parsing recurses. Tells whether the template makes objects.
fn check_tokens(template: &str) -> Result<bool, Refusal> {
    let (mut in_tag, mut elifs, mut has_maps) = (0, 0, false);
    for token in machinery::tokenize(template, false, SyntaxConfig::default()) {
        let (token, _) = token.map_err(|error| error.to_string())?;
        if matches!(token, Token::TemplateData(_) | Token::VariableStart | Token::BlockStart) {
            in_tag = 0;
        }
        in_tag += 1;
        has_maps |= matches!(token, Token::BraceOpen);
        elifs += usize::from(matches!(token, Token::Ident("elif")));
        if in_tag > TAG_TOKENS_MAX {
            return Err(format!("an expression may have {TAG_TOKENS_MAX} words and signs"));
        }
        if elifs > ELIF_MAX {
            return Err(format!("a template may have {ELIF_MAX} elif"));
        }
    }
    Ok(has_maps)
}

impl Shape {
    pub(super) const SCALAR: Self = Self { kind: Kind::Scalar, size: NUMBER, element: NUMBER };

    pub(super) const fn text(size: f64) -> Self {
        Self { kind: Kind::Text, size, element: ITEM }
    }

    pub(super) const fn list(size: f64, element: f64) -> Self {
        Self { kind: Kind::List, size, element }
    }

    /// One of its elements.
    pub(super) fn item(self) -> Self {
        match self.kind {
            Kind::Scalar | Kind::Scalars => Self::SCALAR,
            Kind::Text => Self::text(ITEM),
            Kind::List | Kind::Any => {
                Self { kind: Kind::Any, size: self.element, element: self.element }
            }
        }
    }

    /// Its size when it is written out.
    pub(super) fn written(self) -> f64 {
        match self.kind {
            Kind::Scalar | Kind::Text => self.size,
            Kind::Scalars | Kind::List | Kind::Any => self.size * QUOTED,
        }
    }

    /// Either of the two.
    pub(super) fn or(self, other: Self) -> Self {
        let kind = if self.kind == other.kind { self.kind } else { Kind::Any };
        Self { kind, size: self.size.max(other.size), element: self.element.max(other.element) }
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Self::SCALAR,
            Value::String(text) => Self::text(length(text)),
            Value::Array(items) => {
                let scalar = |item: &Value| Self::of(item).kind == Kind::Scalar;
                let all = Self::of_all(items.iter().map(|item| (0.0, item)));
                let kind = if items.iter().all(scalar) { Kind::Scalars } else { Kind::List };
                Self { kind, ..all }
            }
            Value::Object(fields) => {
                Self::of_all(fields.iter().map(|(name, value)| (length(name) + ITEM, value)))
            }
        }
    }

    fn of_all<'v>(parts: impl Iterator<Item = (f64, &'v Value)>) -> Self {
        parts.fold(Self::list(ITEM, ITEM), |all, (name, value)| {
            let part = name + Self::of(value).size + ITEM;
            Self::list(all.size + part, all.element.max(part))
        })
    }
}

/// One look at a template.
struct Check<'a> {
    /// What is known of the variables, the innermost block's last.
    scopes: Vec<BTreeMap<&'a str, Shape>>,
    /// Names of fields that somewhere in the values hold something other than a number.
    texts: BTreeSet<&'a str>,
    /// Whether the template makes objects, whose fields may hold anything.
    has_maps: bool,
    effort: f64,
    steps: usize,
    loops: usize,
}

impl<'a> Check<'a> {
    fn new(values: &'a Value) -> Self {
        let mut texts = BTreeSet::from(OWN_FIELDS);
        collect_texts(values, &mut texts);
        let fields = values.as_object().into_iter().flatten();
        let values = fields.map(|(name, value)| (name.as_str(), Shape::of(value))).collect();
        Self { scopes: vec![values], texts, has_maps: false, effort: 1.0, steps: 0, loops: 0 }
    }

    fn statements(&mut self, statements: &'a [Stmt<'a>]) -> Result<(), Refusal> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &'a Stmt<'a>) -> Result<(), Refusal> {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitRaw(_) => Ok(()),
            Stmt::EmitExpr(emit) => self.expression(&emit.expr).map(drop),
            Stmt::IfCond(choice) => {
                self.expression(&choice.expr)?;
                self.statements(&choice.true_body)?;
                self.statements(&choice.false_body)
            }
            Stmt::AutoEscape(block) => {
                self.expression(&block.enabled)?;
                self.statements(&block.body)
            }
            Stmt::Set(set) => {
                let shape = self.expression(&set.expr)?;
                self.bind(&set.target, shape)
            }
            Stmt::WithBlock(with) => {
                self.scopes.push(BTreeMap::new());
                for (target, value) in &with.assignments {
                    let shape = self.expression(value)?;
                    self.bind(target, shape)?;
                }
                self.statements(&with.body)?;
                self.scopes.pop();
                Ok(())
            }
            Stmt::ForLoop(each) => self.for_loop(each),
            Stmt::SetBlock(_) | Stmt::FilterBlock(_) | Stmt::Do(_) => {
                Err("blocks that capture their text, and do, are not part of this model".to_owned())
            }
        }
    }

    fn for_loop(&mut self, each: &'a ForLoop<'a>) -> Result<(), Refusal> {
        if each.recursive {
            return Err("recursive loops are not part of this model".to_owned());
        }
        if self.loops == LOOPS_MAX {
            return Err(format!("loops may nest {LOOPS_MAX} deep"));
        }
        let item = self.expression(&each.iter)?.item();
        self.loops += 1;
        // It knows the items before and after the present one.
        let loop_object = Shape { kind: Kind::Any, element: item.size.max(item.element), ..item };
        self.scopes.push(BTreeMap::from([("loop", loop_object)]));
        self.round(each, item)?;
        // What a second round changes, a hundredth round may change beyond any bound.
        let first = self.scopes.clone();
        self.round(each, item)?;
        if self.scopes != first {
            return Err("a variable that grows in a loop has no bound".to_owned());
        }
        self.scopes.pop();
        self.loops -= 1;
        self.statements(&each.else_body)
    }

    fn round(&mut self, each: &'a ForLoop<'a>, item: Shape) -> Result<(), Refusal> {
        self.bind(&each.target, item)?;
        if let Some(filter) = &each.filter_expr {
            self.expression(filter)?;
        }
        self.statements(&each.body)
    }

    /// A variable may be any of the values that it is given in its block.
    fn bind(&mut self, target: &'a Expr<'a>, shape: Shape) -> Result<(), Refusal> {
        if let Expr::Var(variable) = target {
            // Where it is set in a block within, the outer one may be meant.
            let known = self.scopes.iter().any(|scope| scope.contains_key(variable.id));
            let before = if known { self.variable(variable.id) } else { shape };
            let scope = self.scopes.last_mut().ok_or("no block is open")?;
            scope.insert(variable.id, before.or(shape));
            return Ok(());
        }
        let targets = if let Expr::List(list) = target {
            &list.items
        } else if let Expr::Tuple(tuple) = target {
            &tuple.items
        } else {
            return Err("only plain names can be set".to_owned());
        };
        targets.iter().try_for_each(|target| self.bind(target, shape.item()))
    }

    fn variable(&self, name: &str) -> Shape {
        let known = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        known.copied().unwrap_or(Shape::SCALAR)
    }

    /// The value's bound, in whose name the work of making it is noted.
    fn expression(&mut self, expression: &'a Expr<'a>) -> Result<Shape, Refusal> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return Err("it is too long".to_owned());
        }
        let shape = self.shape(expression)?;
        if shape.size > VALUE_MAX {
            return Err(format!("a value in it could become larger than {VALUE_MAX} bytes"));
        }
        Ok(shape)
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each form that an expression can have")]
    fn shape(&mut self, expression: &'a Expr<'a>) -> Result<Shape, Refusal> {
        Ok(match expression {
            Expr::Var(variable) => self.variable(variable.id),
            Expr::Const(constant) => {
                let kind = constant.value.kind();
                if matches!(kind, ValueKind::Number | ValueKind::Bool | ValueKind::None) {
                    Shape::SCALAR
                } else {
                    Shape::text(length(&constant.value.to_string()))
                }
            }
            Expr::GetAttr(get) => {
                let of = self.expression(&get.expr)?;
                self.field(of, Some(get.name))
            }
            Expr::GetItem(get) => {
                let of = self.expression(&get.expr)?;
                self.expression(&get.subscript_expr)?;
                let name = if let Expr::Const(name) = &get.subscript_expr {
                    name.value.as_str()
                } else {
                    None
                };
                self.field(of, name)
            }
            Expr::Slice(slice) => {
                for part in [&slice.start, &slice.stop, &slice.step].into_iter().flatten() {
                    self.expression(part)?;
                }
                let of = self.expression(&slice.expr)?;
                self.works(of.size);
                of
            }
            Expr::UnaryOp(operation) => {
                self.expression(&operation.expr)?;
                Shape::SCALAR
            }
            Expr::BinOp(operation) => {
                let left = self.expression(&operation.left)?;
                let right = self.expression(&operation.right)?;
                let times = [&operation.left, &operation.right].into_iter().find_map(count);
                self.binary(operation.op, left, right, times)?
            }
            Expr::Compare(compare) => {
                let first = self.expression(&compare.expr)?;
                let others = compare.ops.iter().map(|other| &other.expr);
                let others = self.all(others)?;
                self.works(first.size + others.size);
                Shape::SCALAR
            }
            Expr::IfExpr(choice) => {
                self.expression(&choice.test_expr)?;
                let otherwise = choice.false_expr.as_ref();
                let otherwise = otherwise.map(|value| self.expression(value)).transpose()?;
                self.expression(&choice.true_expr)?.or(otherwise.unwrap_or(Shape::SCALAR))
            }
            Expr::Filter(filter) => {
                let Some(value) = &filter.expr else {
                    return Err("blocks that capture their text are not part of this model".into());
                };
                let of = self.expression(value)?;
                let arguments = self.arguments(&filter.args)?;
                let made = template_filters::shape(filter.name, of, &filter.args, arguments)?;
                self.works(template_filters::effort(filter.name, of, arguments) + made.size);
                made
            }
            Expr::Test(test) => {
                let of = self.expression(&test.expr)?;
                let arguments = self.arguments(&test.args)?;
                self.works(of.size + arguments.size);
                Shape::SCALAR
            }
            Expr::Call(call) => {
                let arguments = self.arguments(&call.args)?;
                called(&call.expr, &call.args, arguments)?
            }
            Expr::List(list) => self.all(list.items.iter())?,
            Expr::Tuple(tuple) => self.all(tuple.items.iter())?,
            Expr::Map(map) => self.all(map.keys.iter().chain(&map.values))?,
        })
    }

    /// A field of an object. One that holds numbers wherever it stands in the values is a number.
    fn field(&self, of: Shape, name: Option<&str>) -> Shape {
        let number = name.is_some_and(|name| !self.has_maps && !self.texts.contains(name));
        if number { Shape::SCALAR } else { of.item() }
    }

    fn binary(
        &mut self,
        operation: BinOpKind,
        left: Shape,
        right: Shape,
        times: Option<f64>,
    ) -> Result<Shape, Refusal> {
        self.works(left.size + right.size);
        let scalars = left.kind == Kind::Scalar && right.kind == Kind::Scalar;
        Ok(match operation {
            BinOpKind::ScAnd | BinOpKind::ScOr => left.or(right),
            BinOpKind::Concat => {
                let size = left.written() + right.written();
                self.works(size);
                Shape::text(size)
            }
            BinOpKind::Add if !scalars => Shape { size: left.size + right.size, ..left.or(right) },
            BinOpKind::Mul if !scalars => match times {
                Some(times) => Shape { size: left.size.max(right.size) * times, ..left.or(right) },
                None => {
                    return Err("it may multiply a text: write a|float * b|float".to_owned());
                }
            },
            BinOpKind::Add
            | BinOpKind::Sub
            | BinOpKind::Mul
            | BinOpKind::Div
            | BinOpKind::FloorDiv
            | BinOpKind::Rem
            | BinOpKind::Pow
            | BinOpKind::Eq
            | BinOpKind::Ne
            | BinOpKind::Lt
            | BinOpKind::Lte
            | BinOpKind::Gt
            | BinOpKind::Gte
            | BinOpKind::In => Shape::SCALAR,
        })
    }

    /// All of them side by side, as in a list.
    fn all(&mut self, parts: impl Iterator<Item = &'a Expr<'a>>) -> Result<Shape, Refusal> {
        let mut all = Shape::list(ITEM, ITEM);
        for part in parts {
            let part = self.expression(part)?;
            all.size += part.size + ITEM;
            all.element = all.element.max(part.size);
        }
        Ok(all)
    }

    fn arguments(&mut self, arguments: &'a [CallArg<'a>]) -> Result<Shape, Refusal> {
        self.all(arguments.iter().map(|argument| match argument {
            CallArg::Pos(value)
            | CallArg::Kwarg(_, value)
            | CallArg::PosSplat(value)
            | CallArg::KwargSplat(value) => value,
        }))
    }

    const fn works(&mut self, bytes: f64) {
        self.effort = self.effort.max(bytes);
    }
}

/// What `range(…)`, `loop.cycle(…)` and `loop.changed(…)` give; there are no other functions.
fn called<'a>(
    function: &Expr<'a>,
    arguments: &[CallArg<'a>],
    values: Shape,
) -> Result<Shape, Refusal> {
    if let Expr::Var(variable) = function
        && variable.id == "range"
    {
        let last = match arguments {
            [CallArg::Pos(only)] => count(only),
            _several => None,
        };
        let size = last.unwrap_or(RANGE_MAX).min(RANGE_MAX) * ITEM;
        return Ok(Shape { kind: Kind::Scalars, size, element: NUMBER });
    }
    if let Expr::GetAttr(get) = function {
        match get.name {
            "cycle" => return Ok(values.item()),
            "changed" => return Ok(Shape::SCALAR),
            _other => {}
        }
    }
    Err("there is no function but range".to_owned())
}

/// A whole number that is written out.
pub(super) fn count(expression: &Expr<'_>) -> Option<f64> {
    let Expr::Const(constant) = expression else { return None };
    let number = usize::try_from(constant.value.clone()).ok()?;
    u32::try_from(number).ok().map(f64::from)
}

/// Names of fields under which something other than a number stands.
fn collect_texts<'a>(value: &'a Value, texts: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if matches!(value, Value::String(_) | Value::Array(_) | Value::Object(_)) {
                    texts.insert(name);
                }
                collect_texts(value, texts);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, texts)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[expect(clippy::cast_precision_loss, reason = "lengths stay far below 2^53")]
pub(super) fn length(text: &str) -> f64 {
    text.len() as f64
}

#[cfg(test)]
#[path = "template_bounds_tests.rs"]
mod tests;
