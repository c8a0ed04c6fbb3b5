//! Makes `docs/openapi.json` from the table of routes and the types of their answers, and compares it; challenges by the
//! address of the client.

use std::{env, fs, net::IpAddr, os::unix::fs::PermissionsExt as _, path::Path};

use axum::{Extension, Router, body::Body, middleware::from_fn_with_state};
use http::{Request, header};
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{
    HttpAccess, Peer, guard,
    routes::{OPENAPI, ParameterKind, ROOT, ROUTES, Route},
};
use crate::{
    api::{
        CollectRequest, Collected, Disk, EventLine, ImagePage, Inspected, OpenCircuits, PinChanged, PinRequest, Pins,
        Queue, RunningPulls, Status,
    },
    config::HttpSettings,
    failure::Failure,
    node::{Command, DecisionsRequest, Why},
};

const PAGE: &str = "../../docs/openapi.json";

fn schemas() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut generator: SchemaGenerator =
        settings.with(|settings| settings.definitions_path = "/components/schemas".into()).into_generator();
    macro_rules! add {
        ($($type:ty),*) => { $(generator.subschema_for::<$type>();)* };
    }
    add!(
        CollectRequest,
        Collected,
        <DecisionsRequest as Command>::Answer,
        Disk,
        EventLine,
        Failure,
        ImagePage,
        Inspected,
        OpenCircuits,
        PinChanged,
        PinRequest,
        Pins,
        Queue,
        RunningPulls,
        Status,
        Why
    );
    Value::Object(generator.take_definitions(false))
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn operation(route: &Route) -> Value {
    let parameters = route.parameters.iter().map(|it| {
        let schema = match it.kind {
            ParameterKind::Path | ParameterKind::Text | ParameterKind::Required => json!({ "type": "string" }),
            ParameterKind::Number { max } => json!({ "type": "integer", "minimum": 0, "maximum": max }),
            ParameterKind::Flag => json!({ "type": "boolean" }),
        };
        let place = if it.kind == ParameterKind::Path { "path" } else { "query" };
        let is_required = matches!(it.kind, ParameterKind::Path | ParameterKind::Required);
        json!({ "name": it.name, "in": place, "required": is_required, "description": it.about, "schema": schema })
    });
    let mut parameters: Vec<Value> = parameters.collect();
    if route.method != http::Method::GET {
        parameters.push(json!({
            "name": "X-Imagelet-Action", "in": "header", "required": true,
            "description": "Any value: a page of a foreign site cannot send it. Needs `http.actions`.",
            "schema": { "type": "string" },
        }));
    }
    let content = |schema: Value| json!({ "application/json": { "schema": schema } });
    let mut operation = json!({
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            "200": { "description": "OK", "content": content(reference(route.answer)) },
            "default": { "description": "A failure", "content": content(reference("Failure")) },
        },
    });
    if let Some(body) = route.body {
        operation["requestBody"] = json!({ "content": content(reference(body)) });
    }
    operation
}

fn document() -> Value {
    let mut paths = json!({});
    for route in &ROUTES {
        paths[format!("{ROOT}{}", route.path)][route.method.as_str().to_ascii_lowercase()] = operation(route);
    }
    paths[format!("{ROOT}/events")]["get"] = json!({
        "summary": "Recorded events, later ones, and the progress of pulls, as server-sent events",
        "parameters": [{
            "name": "Last-Event-ID", "in": "header", "required": false,
            "description": "Id of the last event that the client has; earlier ones are left out.",
            "schema": { "type": "string" },
        }],
        "responses": {
            "200": {
                "description": "A stream; the data of each event is one document",
                "content": { "text/event-stream": { "schema": reference("EventLine") } },
            },
            "default": {
                "description": "A failure",
                "content": { "application/json": { "schema": reference("Failure") } },
            },
        },
    });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "imagelet",
            "version": "v1",
            "description": "The HTTP API of the daemon. Fields are added, never renamed or removed; skip unknown ones.",
        },
        "security": [{}, { "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

#[test]
fn the_document_is_made_of_the_table_and_the_types() {
    let made =
        serde_json::to_string(&document()).unwrap().replace("\"/api/v1", "\n\"/api/v1").replace("},\"", "},\n\"")
            + "\n";
    if env::var_os("IMAGELET_UPDATE").is_some() {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE), &made).unwrap();
    } else {
        assert_eq!(OPENAPI, made, "the API is another one: `IMAGELET_UPDATE=1` writes docs/openapi.json anew");
    }
}

#[test]
fn every_reference_of_the_document_has_a_schema() {
    fn walk(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| walk(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| walk(value, found)),
            _ => {}
        }
    }
    let (document, mut references) = (document(), Vec::new());
    walk(&document, &mut references);
    assert!(references.len() > 30, "{}", references.len());
    for reference in references {
        let pointer = reference.strip_prefix('#').expect("references are local");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[tokio::test]
async fn a_browser_is_asked_for_the_token_on_loopback_only() {
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    fs::write(&token_file, "0123456789abcdef0123456789abcdef").unwrap();
    fs::set_permissions(&token_file, fs::Permissions::from_mode(0o600)).unwrap();
    let settings = HttpSettings { token_file: Some(token_file), ..HttpSettings::default() };
    let access = HttpAccess::load(&settings).unwrap();
    for (address, path, status, challenge) in [
        ([127, 0, 0, 1], "/", 401, Some("Basic realm=\"imagelet\"")),
        ([127, 0, 0, 1], "/metrics", 401, Some("Basic realm=\"imagelet\"")),
        ([192, 0, 2, 1], "/", 403, None),
        ([192, 0, 2, 1], "/assets/dashboard.css", 403, None),
        ([192, 0, 2, 1], "/metrics", 401, Some("Bearer")),
    ] {
        let router = Router::new().fallback(async || "ok").layer(from_fn_with_state(access.clone(), guard));
        let router = router.layer(Extension(Peer::Address(IpAddr::from(address))));
        let request = Request::get(path).header(header::HOST, "localhost").header(header::ACCEPT, "text/html");
        let answer = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let found = answer.headers().get(header::WWW_AUTHENTICATE).map(|value| value.to_str().unwrap());
        assert_eq!((answer.status().as_u16(), found), (status, challenge), "{address:?} {path}");
    }
}
