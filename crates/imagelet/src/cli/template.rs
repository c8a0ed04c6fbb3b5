//! Templates of `--format`: the fields of Go templates, as docker's users write them, and nothing that repeats or decides.

use std::str::FromStr;

use serde_json::Value;

use crate::nearest::nearest;

const KNOWN: &str =
    "a template has fields (`{{.ID}}`), `{{json .Field}}` and `{{join .Field \",\"}}`; `-o json` with jq does the rest";

/// A parsed template, rendered once for each row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    pieces: Vec<TemplatePiece>,
    /// With a header of the fields' names.
    pub(crate) is_table: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePiece {
    Text(String),
    Field { path: Vec<String>, form: FieldForm },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FieldForm {
    Plain,
    Json,
    Joined(String),
}

/// A row has no such field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no field `.{field}`{}", .near.as_ref().map_or_else(String::new, |near| format!("; `.{near}` is near")))]
pub(crate) struct TemplateError {
    field: String,
    near: Option<String>,
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "json" {
            return Ok(Self { pieces: vec![field("", FieldForm::Json)], is_table: false });
        }
        let (is_table, mut rest) = text.strip_prefix("table ").map_or((false, text), |rest| (true, rest));
        let mut pieces = Vec::new();
        while let Some((before, after)) = rest.split_once("{{") {
            let (action, after) = after.split_once("}}").ok_or_else(|| format!("`{{{{` without `}}}}`: {KNOWN}"))?;
            pieces.push(TemplatePiece::Text(unescaped(before)));
            pieces.push(parse_action(action.trim())?);
            rest = after;
        }
        pieces.push(TemplatePiece::Text(unescaped(rest)));
        pieces.retain(|piece| !matches!(piece, TemplatePiece::Text(text) if text.is_empty()));
        Ok(Self { pieces, is_table })
    }
}

fn field(path: &str, form: FieldForm) -> TemplatePiece {
    let path = path.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    TemplatePiece::Field { path, form }
}

fn parse_action(action: &str) -> Result<TemplatePiece, String> {
    let refused = || format!("`{{{{{action}}}}}` is not understood: {KNOWN}");
    let (function, rest) = action.split_once(char::is_whitespace).unwrap_or(("", action));
    let (path, rest) = rest.trim().split_once(char::is_whitespace).unwrap_or((rest.trim(), ""));
    let is_path = path.starts_with('.') && path.chars().all(|c| c.is_alphanumeric() || "._-".contains(c));
    let form = match (function, rest.trim()) {
        ("", "") if path != "." => FieldForm::Plain,
        ("json", "") => FieldForm::Json,
        ("join", quoted) => {
            let between = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or_else(refused)?;
            FieldForm::Joined(unescaped(between))
        }
        _ => return Err(refused()),
    };
    if is_path { Ok(field(path, form)) } else { Err(refused()) }
}

/// `\t` and `\n`, which shells pass on as they are.
fn unescaped(text: &str) -> String {
    text.replace("\\t", "\t").replace("\\n", "\n")
}

impl Template {
    /// The line of a row.
    ///
    /// # Errors
    /// The row has no such field.
    pub(crate) fn render(&self, row: &Value) -> Result<String, TemplateError> {
        let mut line = String::new();
        for piece in &self.pieces {
            match piece {
                TemplatePiece::Text(text) => line.push_str(text),
                TemplatePiece::Field { path, form } => line.push_str(&shown(find(row, path)?, form)),
            }
        }
        Ok(line)
    }

    /// The header of a table: the names of the fields in capital letters.
    pub(crate) fn header(&self) -> String {
        let name = |piece: &TemplatePiece| match piece {
            TemplatePiece::Text(text) => text.clone(),
            TemplatePiece::Field { path, .. } => path.last().map_or_else(String::new, |name| name.to_uppercase()),
        };
        self.pieces.iter().map(name).collect()
    }
}

/// Names match in any case: `.ID` is docker's spelling, `id` that of our documents.
fn find<'a>(row: &'a Value, path: &[String]) -> Result<&'a Value, TemplateError> {
    path.iter().try_fold(row, |value, name| {
        let members = value.as_object();
        let found = members.and_then(|members| members.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)));
        found.map(|(_, value)| value).ok_or_else(|| {
            let known = members.into_iter().flat_map(serde_json::Map::keys).map(String::as_str);
            TemplateError { field: path.join("."), near: nearest(name, known).map(str::to_owned) }
        })
    })
}

fn shown(value: &Value, form: &FieldForm) -> String {
    match (form, value) {
        (FieldForm::Json, value) => value.to_string(),
        (FieldForm::Joined(between), Value::Array(items)) => {
            items.iter().map(|item| shown(item, &FieldForm::Plain)).collect::<Vec<_>>().join(between)
        }
        (_, Value::String(text)) => text.clone(),
        (_, Value::Null) => String::new(),
        (_, Value::Array(items)) => {
            format!("[{}]", items.iter().map(|item| shown(item, &FieldForm::Plain)).collect::<Vec<_>>().join(" "))
        }
        (_, value) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_prints_fields_as_docker_does() {
        let row = json!({ "ID": "abc", "names": ["a:1", "b:2"], "size": 5, "none": null,
                          "Config": { "Env": ["A=1"], "Cmd": [] } });
        for (template, line) in [
            ("{{.ID}}", "abc"),
            ("{{ .id }}\\t{{.Size}}\\n", "abc\t5\n"),
            ("{{.Names}}", "[a:1 b:2]"),
            ("{{join .Names \", \"}}", "a:1, b:2"),
            ("{{json .Config.Env}}|{{.None}}|", "[\"A=1\"]||"),
            ("{{.config.cmd}}", "[]"),
            ("plain", "plain"),
            ("json", &row.to_string()),
            ("{{json .}}", &row.to_string()),
        ] {
            let parsed: Template = template.parse().expect(template);
            assert_eq!(parsed.render(&row).as_deref(), Ok(line), "{template}");
        }
        let table: Template = "table {{.ID}}\\t{{.Config.Env}}".parse().expect("a template");
        assert_eq!((table.is_table, table.header().as_str()), (true, "ID\tENV"));
    }

    #[test]
    fn a_template_that_repeats_or_decides_and_an_unknown_field_are_refused_with_what_there_is() {
        for text in
            ["{{.ID", "{{range .Names}}", "{{if .ID}}", "{{.}}", "{{upper .ID}}", "{{join .ID}}", "{{}}", "{{ID}}"]
        {
            let error = text.parse::<Template>().expect_err(text);
            assert!(error.contains("jq"), "{error}");
        }
        let parsed: Template = "{{.Repositry}}".parse().expect("it reads");
        let error = parsed.render(&json!({ "Repository": "a", "ID": "b" })).expect_err("refused").to_string();
        assert_eq!(error, "there is no field `.Repositry`; `.Repository` is near");
    }
}
