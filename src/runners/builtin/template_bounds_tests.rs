//! Templates whose values have a bound, and those that try to grow.

use serde_json::json;

use super::*;

fn values() -> Value {
    let lines = json!([{"name": "tea", "price": 3, "count": 2}, {"name": "jam", "price": 4.5}]);
    json!({"name": "Ada", "names": ["a", "b"], "lines": lines, "long": "x".repeat(100_000), "n": 9})
}

fn refusal(template: &str) -> String {
    check(template, &values()).expect_err(template)
}

#[test]
fn what_people_write_is_admitted() {
    for template in [
        "Hello {{ name | title }}{{ '!' * 3 }}",
        "{% for line in lines %}{{ loop.index }}. {{ line.name }}: {{ line.price * line.count }}
         {%- if not loop.last %}, {% endif %}{% else %}none{% endfor %}",
        "{% set total = lines | map(attribute='price') | sum %}{{ total | round(2) }}",
        "{% set greeting = 'Dear ' ~ name %}{{ greeting }}, {{ greeting | upper }}",
        "{% for line in lines %}{% set label = line.name ~ ':' %}{{ label }}{% endfor %}",
        "{{ names | join(', ') }} {{ lines | tojson }} {{ lines[0].name | default('?') }}",
        "{% with a = names[0] %}{{ a if a in names else 'b' }}{% endwith %}",
        "{% for i in range(10) %}{{ i * 2 + n }}{% endfor %}",
        "{% for key, value in lines[0] | items %}{{ key }}={{ value }} {% endfor %}",
        "{{ lines | selectattr('price', 'gt', 3) | list | length }} {{ long | upper | length }}",
        "{% raw %}{{ 'x' * 999999999 }}{% endraw %}{# {% macro %} #}",
    ] {
        assert!(check(template, &values()).is_ok(), "{template}: {:?}", check(template, &values()));
    }
}

#[test]
fn growth_is_refused_before_it_happens() {
    let doubling = "{% set a = long %}".to_owned() + &"{% set a = a ~ a %}".repeat(40);
    let listed = "{% set a = names %}".to_owned() + &"{% set a = [a, a] %}".repeat(40);
    let nested = "{% for a in [long] %}{% for a in [a ~ a ~ a ~ a] %}{% for a in [a ~ a ~ a ~ a] %}
        {% for a in [a ~ a ~ a ~ a ~ a] %}{{ a ~ a ~ a }}{% endfor %}{% endfor %}{% endfor %}{% endfor %}";
    for (template, expect) in [
        (doubling.as_str(), "larger than"),
        (&listed, "larger than"),
        (nested, "larger than"),
        ("{{ 'x' * 99999999 }}", "larger than"),
        ("{{ long * n }}", "may multiply a text"),
        ("{{ lines[0].name * n }}", "may multiply a text"),
        ("{{ {'price': 'x'}.price * 9 * n }}", "may multiply a text"),
        ("{{ long | replace('x', long) }}", "larger than"),
        ("{{ long | list | join(long) }}", "larger than"),
        ("{{ long | tojson(99) }}", "up to 32 spaces"),
        ("{{ long | indent(n) }}", "up to 32 spaces"),
        ("{{ 'x' | center(99999999) }}", "not part of this model"),
        ("{{ '%999999999d' | format(1) }}", "not part of this model"),
        ("{{ names | map('center', 99999999) }}", "map takes"),
        ("{{ names | join(*names) }}", "must be written out"),
        ("{% set x %}a{% endset %}", "capture"),
        ("{% filter upper %}a{% endfilter %}", "capture"),
        ("{% set s = namespace(x=long) %}", "no function but range"),
        ("{% for x in names recursive %}{{ loop(x) }}{% endfor %}", "recursive"),
        ("{% for x in names %}{% set a = (a or long) ~ 'x' %}{% endfor %}", "grows in a loop"),
        ("{% macro m() %}{% endmacro %}", "syntax error"),
        ("{% include 'x' %}", "syntax error"),
    ] {
        let said = refusal(template);
        assert!(said.contains(expect), "{said}\n  instead of: {expect}\n  for {template}");
    }
}

#[test]
fn depth_is_refused_before_it_is_parsed() {
    let chains = ["~a", "+a", "|e", ".a", "[0]", " is odd", "()", " and a", "**2", " if a else a"];
    for chain in chains {
        assert!(
            refusal(&format!("{{{{ a{} }}}}", chain.repeat(9_000))).contains("words"),
            "{chain}"
        );
    }
    for prefix in ["not ", "-"] {
        assert!(refusal(&format!("{{{{ {}a }}}}", prefix.repeat(20_000))).contains("words"));
    }
    let choices = format!("{{% if n %}}{}{{% endif %}}", "{% elif n %}".repeat(9_000));
    assert!(refusal(&choices).contains("elif"));
    let loops = format!("{}{}", "{% for a in names %}".repeat(7), "{% endfor %}".repeat(7));
    assert!(refusal(&loops).contains("loops may nest"));
}
