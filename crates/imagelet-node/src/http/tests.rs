//! Makes `docs/openapi.json` from the types of the parameters and the answers, and compares it; challenges by the
//! address of the client.

use std::{env, fs, net::IpAddr, os::unix::fs::PermissionsExt as _, path::Path};

use axum::{Extension, Router, body::Body, middleware::from_fn_with_state};
use http::{Request, header};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{
    HttpAccess, Peer, guard,
    routes::{OPENAPI, PageParameters, PlanParameters, ROOT},
};
use crate::{
    api::{
        CollectRequest, Collected, Disk, DiskRequest, EventLine, ImagePage, Inspected, OpenCircuits, PinChanged,
        PinRequest, Pins, Queue, RunningPulls, Status, UnpinRequest,
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

/// The fields of a type as parameters of a query.
fn parameters<T: JsonSchema>(is_required: bool) -> Vec<Value> {
    let schema = SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>();
    let fields = schema.as_value()["properties"].as_object().expect("a document has fields");
    let parameter = |(name, field): (&String, &Value)| {
        let mut schema = json!({ "type": field["type"].as_array().map_or(&field["type"], |types| &types[0]) });
        for bound in ["minimum", "maximum"] {
            if let Some(value) = field.get(bound) {
                schema[bound] = value.clone();
            }
        }
        json!({ "name": name, "in": "query", "required": is_required, "description": field["description"], "schema": schema })
    };
    fields.iter().map(parameter).collect()
}

fn image() -> Vec<Value> {
    let about = "Name, id, or unique beginning of an id.";
    let schema = json!({ "type": "string" });
    vec![json!({ "name": "image", "in": "path", "required": true, "description": about, "schema": schema })]
}

fn operation(method: &str, summary: &str, mut parameters: Vec<Value>, body: Option<&str>, answer: &str) -> Value {
    if method != "get" {
        parameters.push(json!({
            "name": "X-Imagelet-Action", "in": "header", "required": true,
            "description": "Any value: a page of a foreign site cannot send it. Needs `http.actions`.",
            "schema": { "type": "string" },
        }));
    }
    let content = |schema: Value| json!({ "application/json": { "schema": schema } });
    let mut operation = json!({
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": { "description": "OK", "content": content(reference(answer)) },
            "default": { "description": "A failure", "content": content(reference("Failure")) },
        },
    });
    if let Some(body) = body {
        operation["requestBody"] = json!({ "content": content(reference(body)) });
    }
    operation
}

fn document() -> Value {
    let mut paths = json!({});
    let none = Vec::new;
    for (path, summary, parameters, answer) in [
        (
            "/images",
            "The images of the node, in the order of their ids",
            parameters::<PageParameters>(false),
            "ImagePage",
        ),
        ("/images/{image}", "One image with its configuration and layers", image(), "Inspected"),
        ("/pulls", "Running and waiting pulls with their layers", none(), "RunningPulls"),
        (
            "/disk",
            "The disk of the images: usage, thresholds, what holds it, history and forecast",
            parameters::<DiskRequest>(false),
            "Disk",
        ),
        (
            "/decisions",
            "The last pulls, removals and failures with their reasons, the latest first",
            parameters::<DecisionsRequest>(false),
            "Decisions",
        ),
        ("/decisions/{image}", "The history of an image, what holds it, and the next decision on it", image(), "Why"),
        ("/queue", "Waiting pulls, images in back-off, and the waits of pods and namespaces", none(), "Queue"),
        ("/registries", "The registries that are not asked at present", none(), "OpenCircuits"),
        ("/status", "The daemon at a glance, as `imagelet status -o json`", none(), "Status"),
        (
            "/gc/plan",
            "What a collection would remove and keep, and why",
            parameters::<PlanParameters>(false),
            "Collected",
        ),
        ("/pins", "The pins, each with the images it keeps", none(), "Pins"),
    ] {
        paths[format!("{ROOT}{path}")]["get"] = operation("get", summary, parameters, None, answer);
    }
    let unpin = parameters::<UnpinRequest>(true);
    for (method, path, summary, parameters, body, answer) in [
        ("post", "/gc", "Collect now", none(), Some("CollectRequest"), "Collected"),
        ("post", "/pins", "Pin the images of a reference, glob or digest", none(), Some("PinRequest"), "PinChanged"),
        ("delete", "/pins", "Take a pin back", unpin, None, "PinChanged"),
    ] {
        paths[format!("{ROOT}{path}")][method] = operation(method, summary, parameters, body, answer);
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
fn the_document_is_made_of_the_types() {
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
