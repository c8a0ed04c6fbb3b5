//! The client's checks, deadlines, spans and lists, as the vectors have them.

use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{ByteSize, Image, ImageId, ImageSpec, ImageUser},
    ports::{ImageService as _, no_progress},
    testing::FakeRuntime,
};
use imagelet_runtime::cri::{Endpoint, RemoteImageService};
use imagelet_vectors::{VectorRun, vectors};
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;
use tonic::{Code, Status};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::{
    PATIENCE, Served, request,
    scripted::{Scripted, scripted},
    wire::{ImageServiceServer, v1},
};

/// A status as a vector writes it.
fn refusal(grpc: &Value) -> Status {
    let code = match grpc["code"].as_str().unwrap() {
        "NotFound" => Code::NotFound,
        "Unknown" => Code::Unknown,
        other => panic!("no such code: {other}"),
    };
    Status::new(code, grpc["message"].as_str().unwrap())
}

/// Answers what a vector's runtime does.
fn script(input: &Value) -> Scripted {
    let response = &input["response"];
    let image = |image: &Value| v1::Image {
        id: image["id"].as_str().unwrap().to_owned(),
        size: image["size"].as_u64().unwrap(),
        ..v1::Image::default()
    };
    let images = response["images"].as_array().map(|images| {
        assert!(images.iter().all(|listed| image(listed).size == 0), "the script lists images without a size");
        images.iter().map(|listed| image(listed).id).collect()
    });
    let failed = input["image_fs_info_error"].as_str().map(|error| {
        let message = error.strip_prefix("rpc error: code = Unimplemented desc = ").expect("the one of the vectors");
        Status::unimplemented(message)
    });
    Scripted {
        image: response.get("image").filter(|image| !image.is_null()).map(image),
        // Without a script, a pull answers what it was asked for.
        image_ref: response.get("image_ref").unwrap_or(&input["image"]).as_str().unwrap_or_default().to_owned(),
        refusal: input.get("grpc").map(refusal),
        unary: images,
        handshake_refusal: failed,
        ..Scripted::default()
    }
}

/// What an error says, as the one text that the interface's own client makes of it.
fn told<T>(result: Result<T, RuntimeError>) -> Option<String> {
    result.err().map(|error| error.chain())
}

/// Builds a client as our programs do: reads the endpoint, then connects.
async fn build(endpoint: &str, timeout: Duration) -> Result<RemoteImageService, String> {
    let endpoint: Endpoint =
        endpoint.parse().map_err(|error: imagelet_runtime::cri::EndpointError| error.to_string())?;
    RemoteImageService::connect(&endpoint, timeout).await.map_err(|error| error.chain())
}

#[tokio::test]
async fn the_client_builds_checks_traces_and_ends_as_the_vectors_say() {
    let cases = vectors("cri-client.json");
    assert_eq!(cases.len(), 16);
    for case in cases {
        let (input, expected, name) = (&case["input"], &case["expected"], &case["name"]);
        let wanted = expected["error"].as_str();
        let spec = ImageSpec::new(input["image"].as_str().unwrap_or_default());
        let (served, client) = scripted(script(input)).await;
        match input["step"].as_str().unwrap() {
            "build" if expected["error_contains"].is_string() => {
                let timeout = Duration::from_millis(input["connection_timeout_ms"].as_u64().unwrap());
                let error = build(input["endpoint"].as_str().unwrap(), timeout).await.unwrap_err();
                assert!(error.contains(expected["error_contains"].as_str().unwrap()), "{name}: {error}");
            }
            "build" => {
                let error = build(&served.endpoint.to_string(), PATIENCE).await.unwrap_err();
                // The socket of a test is elsewhere than the vector's.
                let here = error.replace(&served.endpoint.to_string(), input["endpoint"].as_str().unwrap());
                assert_eq!(Some(here.as_str()), wanted, "{name}");
            }
            "build+ImageFsInfo" => {
                let built = build(&served.endpoint.to_string(), PATIENCE).await.unwrap();
                assert_eq!(told(built.filesystem().await).as_deref(), wanted, "{name}");
            }
            "PullImage" if input.get("tracer").is_some() => {
                let (spans, pulled) = traced_pull(client, &spec.image, input["tracer"] == "set").await;
                assert_eq!(pulled.as_str(), expected["image_ref"].as_str().unwrap(), "{name}");
                let wanted: &[&str] = if expected["spans_exported"] == true { &["PullImage"] } else { &[] };
                assert_eq!(spans, wanted, "{name}");
            }
            "PullImage" => {
                assert_eq!(told(client.pull(&request(&spec.image), no_progress()).await).as_deref(), wanted, "{name}");
            }
            "ImageStatus" => {
                let found = client.status(&spec).await;
                assert_eq!(found.as_ref().ok(), wanted.is_none().then_some(&None), "{name}");
                assert_eq!(told(found).as_deref(), wanted, "{name}");
            }
            "RemoveImage" => assert_eq!(told(client.remove(&spec).await).as_deref(), wanted, "{name}"),
            "ListImages" => {
                let listed = client.list(None).await;
                assert_eq!(
                    listed.as_ref().ok().map(|images| images.len()).map(Value::from).as_ref(),
                    expected.get("count"),
                    "{name}"
                );
                assert_eq!(told(listed).as_deref(), wanted, "{name}");
            }
            "deadline" => deadlines(input, expected).await,
            other => panic!("no such step: {other}"),
        }
    }
}

/// The deadlines that calls are sent with.
async fn deadlines(input: &Value, expected: &Value) {
    let script = Scripted { image_ref: "sha256:a".into(), ..Scripted::default() };
    let deadlines = Arc::clone(&script.deadlines);
    let (_served, client) = scripted(script).await;
    let spec = ImageSpec::new("a");
    for call in input["call"].as_array().unwrap() {
        match call.as_str().unwrap() {
            "ListImages" => drop(client.list(None).await.unwrap()),
            "ImageStatus" => drop(client.status(&spec).await.unwrap()),
            "RemoveImage" => client.remove(&spec).await.unwrap(),
            "ImageFsInfo" => drop(client.filesystem().await.unwrap()),
            "PullImage" => drop(client.pull(&request("a"), no_progress()).await.unwrap()),
            other => panic!("no such call: {other}"),
        }
        let sent = deadlines.lock().unwrap().pop().expect("the call came in");
        match expected["deadline"].as_str() {
            None => assert_eq!(sent, None, "{call}"),
            Some("connection timeout") => {
                // What is left of it once the call is on its way.
                let left = timeout_of(&sent.expect("a deadline"));
                assert!(left <= PATIENCE && left > PATIENCE / 2, "{call}: {left:?}");
            }
            Some(other) => panic!("no such deadline: {other}"),
        }
    }
}

/// A `grpc-timeout` as it is sent: digits and a unit.
fn timeout_of(text: &str) -> Duration {
    let (digits, unit) = text.split_at(text.len() - 1);
    let number: u64 = digits.parse().unwrap();
    match unit {
        "n" => Duration::from_nanos(number),
        "u" => Duration::from_micros(number),
        "m" => Duration::from_millis(number),
        "S" => Duration::from_secs(number),
        other => panic!("no such unit: {other}"),
    }
}

/// Pulls, under a subscriber of its own if there is one; answers the methods of the client's spans, each closed.
async fn traced_pull(client: RemoteImageService, image: &str, is_set: bool) -> (Vec<String>, ImageId) {
    let spans = Spans::default();
    // With a single dispatcher, the first thread at a span decides for all threads whether it is enabled; it may be a
    // parallel test without a subscriber. With two dispatchers, both are asked.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    let guard = is_set.then(|| tracing::subscriber::set_default(subscriber));
    let id = client.pull(&request(image), no_progress()).await.unwrap();
    drop(guard);
    let exported = spans.0.lock().unwrap().clone();
    (exported, id)
}

/// Notes the method of each span of a client's call when it ends.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

/// The method of a span, kept with it.
struct Method(String);

impl tracing::field::Visit for Method {
    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        if field.name() == "rpc.method" {
            value.clone_into(&mut self.0);
        }
    }
    fn record_debug(&mut self, _field: &tracing::field::Field, _value: &dyn std::fmt::Debug) {}
}

impl<S> tracing_subscriber::Layer<S> for Spans
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        id: &tracing::span::Id,
        context: tracing_subscriber::layer::Context<'_, S>,
    ) {
        if attributes.metadata().name() == "cri_call" {
            let mut method = Method(String::new());
            attributes.record(&mut method);
            context.span(id).unwrap().extensions_mut().insert(method);
        }
    }

    fn on_close(&self, id: tracing::span::Id, context: tracing_subscriber::layer::Context<'_, S>) {
        let span = context.span(&id).unwrap();
        if let Some(Method(method)) = span.extensions().get() {
            self.0.lock().unwrap().push(method.clone());
        }
    }
}

#[tokio::test]
async fn a_stream_is_taken_whole_or_not_at_all() {
    let ids = |images: &[Arc<Image>]| images.iter().map(|image| image.id.to_string()).collect::<Vec<_>>().join(" ");
    let script = |batches: Vec<Vec<&'static str>>, stream_end| Scripted {
        batches: batches.into_iter().map(|ids| ids.into_iter().map(str::to_owned).collect()).collect(),
        stream_end,
        ..Scripted::default()
    };

    let (_served, client) = scripted(script(vec![vec!["a", "b"], vec!["c"]], None)).await;
    assert_eq!(ids(&client.streaming_lists(true).list(None).await.unwrap()), "a b c");

    let (_served, client) = scripted(script(vec![vec!["x"]], Some(Status::internal("boom")))).await;
    let error = client.streaming_lists(true).list(None).await.unwrap_err();
    assert_eq!(error.to_string(), "rpc error: code = Internal desc = boom");

    let unimplemented = script(vec![vec!["x"]], Some(Status::unimplemented("no streams here")));
    let lists = Arc::clone(&unimplemented.lists);
    let (_served, client) = scripted(unimplemented).await;
    let client = client.streaming_lists(true);
    assert_eq!(ids(&client.list(None).await.unwrap()), "a");
    assert_eq!(ids(&client.list(None).await.unwrap()), "a", "streaming stays off");
    assert_eq!(lists.load(Ordering::SeqCst), 2);
}

/// Two bytes each on the wire, hundreds in memory.
#[tokio::test]
async fn a_list_that_would_fill_the_memory_is_refused_in_one_message_and_in_many() {
    let hollow = |count| vec![String::new(); count];
    for (script, is_streamed) in [
        (Scripted { unary: Some(hollow(300_000)), ..Scripted::default() }, false),
        (Scripted { batches: vec![hollow(100_000); 3], ..Scripted::default() }, true),
    ] {
        let (_served, client) = scripted(script).await;
        let error = client.streaming_lists(is_streamed).list(None).await.unwrap_err();
        assert!(error.to_string().ends_with("the answer holds more than any may"), "{is_streamed}: {error}");
    }
}

#[tokio::test]
async fn a_runtime_that_does_not_answer_is_given_up() {
    let served = Served::service(ImageServiceServer::new(Scripted { hangs: true, ..Scripted::default() })).await;
    let client = RemoteImageService::lazy(&served.endpoint, Duration::from_millis(50)).unwrap();
    let error = client.list(None).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::TimedOut, "{}", error.chain());
    assert!(error.to_string().contains("did not answer `ListImages` within 50ms"), "{error}");
}

#[tokio::test]
async fn lists_stream_as_the_vectors_say() {
    let mut run = VectorRun::once("cri-list-streaming.json", |_| true);
    while let Some(case) = run.next_case() {
        let found =
            if case.input["side"] == "server" { list_served(&case.input).await } else { list_asked(&case.input).await };
        run.compare(&case, &found);
    }
    run.end();
}

/// How many images each message of the server has; it loses and repeats none.
async fn list_served(input: &Value) -> Value {
    let fake = FakeRuntime::new();
    let count = usize::try_from(input["image_count"].as_u64().unwrap()).unwrap();
    for number in 0..count {
        fake.insert(Image {
            id: ImageId::new(number.to_string()),
            tags: Vec::new(),
            digests: Vec::new(),
            size: ByteSize(1),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
            artifact: None,
        });
    }
    let served = Served::images(fake).await;
    let stream = served.raw().await.stream_images(v1::StreamImagesRequest::default()).await.unwrap();
    let messages: Vec<_> = stream.into_inner().map(|message| message.unwrap().images).collect().await;
    let ids: std::collections::BTreeSet<_> = messages.iter().flatten().map(|image| &image.id).collect();
    assert_eq!(ids.len(), count);
    json!({"messages": messages.iter().map(Vec::len).collect::<Vec<_>>()})
}

/// What the client asks a server that does as the vector says, and what it makes of the answers.
async fn list_asked(input: &Value) -> Value {
    let end = &input["stream_error"];
    let stream_end = end["code"].as_str().map(|code| match code {
        "Unimplemented" => Status::unimplemented("no streams here"),
        "Internal" => Status::internal(end["message"].as_str().unwrap()),
        other => panic!("no such code: {other}"),
    });
    let script = Scripted {
        batches: serde_json::from_value(input["stream"].clone()).unwrap_or_default(),
        unary: serde_json::from_value(input["unary"].clone()).ok(),
        stream_end,
        ..Scripted::default()
    };
    let asked = Arc::clone(&script.asked);
    let (_served, client) = scripted(script).await;
    let client = if input["use_streaming"] == true { client.streaming_lists(true) } else { client };
    let result = client.list(None).await;
    let calls = std::mem::take(&mut *asked.lock().unwrap());
    let error = result.as_ref().err().map(ToString::to_string);
    let ids = result.ok().map(|images| images.iter().map(|image| image.id.to_string()).collect::<Vec<_>>());
    let _ = client.list(None).await;
    let streams_after = asked.lock().unwrap()[0] == "StreamImages";
    json!({"calls": calls, "images": ids, "error": error, "streaming_after": streams_after})
}
