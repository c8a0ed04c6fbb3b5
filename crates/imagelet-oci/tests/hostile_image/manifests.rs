//! Documents that are two things, none, too large or too deep.

use imagelet_core::error::RuntimeErrorKind::{Corrupt, Unacceptable};
use serde_json::{Value, json};

use super::{
    case::{Bench, Case},
    child,
    image::{ARCHITECTURE, INDEX, Image, Layer, MANIFEST, OTHER, gzip, tar},
    registry::Answer,
};

/// Told as tests of their own below.
pub(crate) const STORIES: &[&str] = &["B062", "B063"];

const DOCKER: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

fn here() -> Value {
    json!({"os": "linux", "architecture": ARCHITECTURE})
}

fn untyped(image: Image) -> Image {
    image.manifest(|manifest| {
        manifest.as_object_mut().expect("an object").remove("mediaType");
    })
}

/// An image with the types of Docker's registry, manifest v2, schema 2.
fn docker_image() -> Image {
    let tar = tar(&[("file", b"docker")]);
    let layer = Layer::packed("application/vnd.docker.image.rootfs.diff.tar.gzip", gzip(&tar), &tar);
    Image::of([layer.holding("file", b"docker")])
        .manifest(|manifest| {
            manifest["mediaType"] = DOCKER.into();
            manifest["config"]["mediaType"] = "application/vnd.docker.container.image.v1+json".into();
        })
        .content_type(DOCKER)
}

/// Indexes one below the other, `depth` of them.
fn nested(depth: usize) -> Image {
    (0..depth).fold(Image::good("deep down"), |image, _| image.below_index(&here()))
}

fn fan(count: usize) -> Image {
    let entry =
        json!({"mediaType": MANIFEST, "digest": Image::good("fan").digest(), "size": 1, "platform": {"os": "plan9"}});
    Image::good("fan")
        .with_manifest(json!({"schemaVersion": 2, "manifests": vec![entry; count]}).to_string())
        .content_type(INDEX)
}

fn b060() -> Vec<Case> {
    let both = |content_type: &str| {
        Image::good("both")
            .manifest(|manifest| {
                manifest["manifests"] =
                    json!([{"mediaType": MANIFEST, "digest": Image::good("x").digest(), "size": 1}]);
                manifest["mediaType"] = content_type.into();
            })
            .content_type(content_type)
    };
    let called = |content_type: &str| Image::good("called").content_type(content_type);
    let two = &["manifest and an image index at once"];
    vec![
        Case::new("B060", "both, called an image", both(MANIFEST)).fails(Unacceptable, two).never_asks("/blobs/"),
        Case::new("B060", "both, called an index", both(INDEX)).fails(Unacceptable, two).never_asks("/blobs/"),
        Case::new("B060", "both, called nothing", untyped(both("")).content_type(""))
            .fails(Unacceptable, two)
            .never_asks("/blobs/"),
        Case::new(
            "B060",
            "index with a configuration",
            nested(1).manifest(|index| {
                index["config"] = json!({"mediaType": "a", "digest": Image::good("x").digest(), "size": 2});
            }),
        )
        .fails(Unacceptable, two),
        Case::new("B060", "image called an index", called(INDEX))
            .fails(Corrupt, &[MANIFEST, INDEX])
            .never_asks("/blobs/"),
        Case::new("B060", "image called docker's", called(DOCKER)),
        Case::new("B060", "docker's image called OCI's", docker_image().content_type(MANIFEST)),
        Case::new("B060", "index called docker's", nested(1).content_type(DOCKER_LIST)),
        Case::new("B060", "index called docker's image", nested(1).content_type(DOCKER))
            .fails(Corrupt, &[INDEX, DOCKER])
            .never_asks("/blobs/"),
        Case::new("B060", "image called json", called("application/json"))
            .fails(Corrupt, &[MANIFEST, "application/json"])
            .never_asks("/blobs/"),
        Case::new("B060", "index called an image", nested(1).content_type(MANIFEST)).fails(Corrupt, &[MANIFEST, INDEX]),
        Case::new("B060", "untyped image called an index", untyped(Image::good("u")).content_type(INDEX))
            .fails(Corrupt, &["no usable manifest"])
            .never_asks("/blobs/"),
        Case::new("B060", "untyped index called an image", untyped(nested(1)).content_type(MANIFEST))
            .fails(Corrupt, &["no usable manifest"]),
        Case::new(
            "B060",
            "untyped image called a stream",
            untyped(Image::good("u")).content_type("application/octet-stream"),
        )
        .fails(Unacceptable, &["application/octet-stream"])
        .never_asks("/blobs/"),
        Case::new("B060", "untyped image", untyped(Image::good("u"))),
        Case::new("B060", "untyped image called docker's", untyped(Image::good("u")).content_type(DOCKER)),
        Case::new(
            "B060",
            "untyped image with a parameter",
            untyped(Image::good("u")).content_type("application/vnd.OCI.image.manifest.v1+json; charset=utf-8"),
        ),
        Case::new("B060", "untyped image called nothing", untyped(Image::good("u")).content_type("")),
        Case::new("B060", "image called nothing", called("")),
        Case::new("B060", "docker's whole", docker_image()),
        Case::new("B060", "untyped index", untyped(nested(1))),
        Case::new("B060", "untyped index called docker's", untyped(nested(1)).content_type(DOCKER_LIST)),
        Case::new(
            "B060",
            "entry of another kind than its index says",
            nested(1).manifest(|index| index["manifests"][0]["mediaType"] = INDEX.into()),
        )
        .fails(Corrupt, &[MANIFEST, INDEX, "as the index says"]),
    ]
}

fn b061() -> Vec<Case> {
    let answer = |name: &'static str, answer: Answer| {
        Case::new("B061", name, Image::good("x")).answering("manifests/v1", answer).never_asks("/blobs/")
    };
    let (none, page) = ("is not an image manifest", "and no manifest");
    vec![
        answer("a page", Answer::ok("text/html; charset=utf-8", "<html>please log in</html>"))
            .fails(Corrupt, &["text/html", page]),
        answer("a page called a manifest", Answer::ok(MANIFEST, "<html>please log in</html>"))
            .fails(Corrupt, &[MANIFEST, page]),
        answer("a page called nothing", Answer::ok("", "<html>")).fails(Corrupt, &[page]),
        answer("nothing", Answer::ok(MANIFEST, "")).fails(Corrupt, &[MANIFEST, none]),
        answer("nothing in pieces", Answer::ok(INDEX, "").in_pieces()).fails(Corrupt, &[INDEX, none]),
        answer("no content", Answer::ok("", "").status(204)).fails(Corrupt, &["204"]),
        answer("a part", Answer::ok(MANIFEST, Image::good("x").root_bytes()).status(206)).fails(Corrupt, &["206"]),
        answer("words", Answer::ok("text/plain", "not json")).fails(Corrupt, &["text/plain", none]),
        answer("half a manifest", Answer::ok(MANIFEST, &br#"{"schemaVersion":2,"config":{"#[..]))
            .fails(Corrupt, &[none]),
        answer("a list", Answer::ok(MANIFEST, "[]")).fails(Corrupt, &[none]),
        answer("null", Answer::ok(MANIFEST, "null")).fails(Corrupt, &[none]),
        answer("two documents", Answer::ok(MANIFEST, [Image::good("x").root_bytes(), b"{}".to_vec()].concat()))
            .fails(Corrupt, &[none]),
        answer("no UTF-8", Answer::ok(MANIFEST, &b"{\"mediaType\":\"\xff\xfe\"}"[..])).fails(Corrupt, &[none]),
        answer("an empty object", Answer::ok(MANIFEST, "{}")).fails(Corrupt, &["names no configuration"]),
        answer("a type with control characters", Answer::ok("text/\u{9}html", "<html>")).fails(Corrupt, &[page]),
    ]
}

fn b062() -> Vec<Case> {
    let answer = |name: &'static str, body: Vec<u8>| {
        Case::new("B062", name, Image::good("x"))
            .answering("manifests/v1", Answer::ok(MANIFEST, body))
            .never_asks("/blobs/")
    };
    let limit = &["larger than 4.19MB"];
    let good = String::from_utf8(Image::good("x").root_bytes()).expect("JSON");
    let twice = |text: &str| good.replacen('{', &format!("{{{text},"), 1).into_bytes();
    let config = json!({"mediaType": "a", "digest": Image::good("x").digest(), "size": 2});
    vec![
        answer("32 MiB of blanks", vec![b' '; 32 << 20]).fails(Unacceptable, limit),
        answer("32 MiB of a true manifest", [good.as_bytes(), &vec![b'\n'; 32 << 20]].concat())
            .fails(Unacceptable, limit),
        answer("one byte too much", {
            let mut body = good.clone().into_bytes();
            body.resize((4 << 20) + 1, b' ');
            body
        })
        .fails(Unacceptable, limit),
        Case::new(
            "B062",
            "as much as is taken",
            Image::good("x").with_manifest({
                let mut body = good.clone().into_bytes();
                body.resize(4 << 20, b' ');
                body
            }),
        ),
        Case::new("B062", "endless", Image::good("x"))
            .answering("manifests/v1", Answer::endless(MANIFEST, "{", vec![b' '; 64 << 10]))
            .fails(Unacceptable, limit),
        answer("deep lists", format!("{{\"x\":{}", "[".repeat(1 << 20)).into_bytes())
            .fails(Corrupt, &["not an image manifest"]),
        answer("deep objects", "{\"annotations\":".repeat(200_000).into_bytes())
            .fails(Corrupt, &["not an image manifest"]),
        answer("deep in a layer", format!("{{\"layers\":{}", "[{\"platform\":".repeat(100_000)).into_bytes())
            .fails(Corrupt, &["not an image manifest"]),
        answer("configuration twice", twice(&format!("\"config\":{config}"))).fails(Corrupt, &["duplicate field"]),
        answer("layers twice", twice("\"layers\":[]")).fails(Corrupt, &["duplicate field"]),
        answer("media type twice", twice(&format!("\"mediaType\":\"{INDEX}\""))).fails(Corrupt, &["duplicate field"]),
        answer(
            "digest of a layer twice",
            good.replace("\"layers\":[{", &format!("\"layers\":[{{\"digest\":\"{}\",", Image::good("y").digest()))
                .into_bytes(),
        )
        .fails(Corrupt, &["duplicate field"]),
        answer("a number without end", format!("{{\"schemaVersion\":{}}}", "9".repeat(1 << 20)).into_bytes())
            .fails(Corrupt, &["not an image manifest"]),
        answer("a name without end", format!("{{\"{}\":1}}", "x".repeat(1 << 20)).into_bytes())
            .fails(Corrupt, &["names no configuration"]),
        answer(
            "a digest without end",
            good.replace("sha256:", &format!("sha256:{}", "a".repeat(1 << 20))).into_bytes(),
        )
        .fails(Corrupt, &["not an image manifest"]),
    ]
}

fn b063() -> Vec<Case> {
    vec![
        Case::new("B063", "four indexes deep", nested(4)),
        Case::new("B063", "five indexes deep", nested(5)).fails(Unacceptable, &["index of more than 4 levels"]).never_asks("/blobs/"),
        Case::new("B063", "sixty indexes deep", nested(60)).fails(Unacceptable, &["index of more than 4 levels"]).never_asks("/blobs/"),
        Case::new("B063", "1000 entries and none of them", fan(1000)).fails(Unacceptable, &["plan9", ARCHITECTURE, "hint: ask for one of these"]),
        Case::new("B063", "1001 entries", fan(1001)).fails(Unacceptable, &["1001 entries", "1000"]),
        Case::new("B063", "20,000 entries", fan(20_000)).fails(Unacceptable, &["20000 entries", "1000"]),
        Case::new("B063", "64,000 entries", fan(64_000)).fails(Unacceptable, &["larger than 4.19MB"]),
        Case::new("B063", "no platform that fits", Image::good("x").below_index(&json!({"os": "linux", "architecture": OTHER, "variant": "v9"})))
            .fails(Unacceptable, &[&format!("linux/{OTHER}/v9"), ARCHITECTURE, "--platform"]),
        Case::new("B063", "no entries", Image::good("x").with_manifest(json!({"schemaVersion": 2, "manifests": []}).to_string()).content_type(INDEX))
            .fails(Unacceptable, &["only for: nothing"]),
        Case::new("B063", "null for entries", Image::good("x").with_manifest(r#"{"manifests":null}"#).content_type(INDEX)).fails(Unacceptable, &["nothing"]),
        Case::new("B063", "an entry without platform", Image::good("x").below_index(&json!(null))),
        Case::new("B063", "an entry that is missing", nested(1).manifest(|index| index["manifests"][0]["digest"] = Image::good("never put").digest().into()))
            .fails(imagelet_core::error::RuntimeErrorKind::NotFound, &[&Image::good("never put").digest()]),
        Case::new("B063", "a platform of control characters", Image::good("x").below_index(&json!({"os": "a\u{7}\nb", "architecture": "c"})))
            .fails(Unacceptable, &["a??b/c"]),
        Case::new("B063", "a thousand long platforms", Image::good("x").with_manifest({
            let entries: Vec<Value> = (0..1000).map(|number| json!({"mediaType": MANIFEST, "digest": Image::good("x").digest(), "size": 1, "platform": {"os": format!("os{number}"), "architecture": "x".repeat(2000)}})).collect();
            json!({"manifests": entries}).to_string()
        }).content_type(INDEX))
        .fails(Unacceptable, &["os0/", "…"]),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    [b060(), b061(), b062(), b063()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_one_thing_by_its_own_and_its_transports_word() {
    Bench::new().await.hold(b060()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_no_manifest_is_refused_by_its_type() {
    Bench::new().await.hold(b061()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_is_too_much_is_refused() {
    Bench::new().await.hold(b062()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_leads_nowhere_is_refused_with_what_it_offers() {
    Bench::new().await.hold(b063()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_manifest_is_read_to_its_limit_and_no_further() {
    let bench = Bench::new().await;
    bench.registry.answer("/v2/endless/manifests/v1", Answer::endless(MANIFEST, "{", vec![b' '; 64 << 10]));
    let name = format!("{}/endless:v1", bench.registry.host());
    super::case::pull(&bench.engine, &name).await.expect_err("it does not end");
    // What lies in the socket's buffers was sent and not read.
    assert!(bench.registry.endless_sent() <= 24 << 20, "{} bytes were sent", bench.registry.endless_sent());
}

/// A document may be 4 MiB long; what is made of it in memory may not be many times that.
const DOCUMENT_MEMORY_MAX: u64 = 48 << 20;

#[test]
fn no_manifest_takes_much_more_memory_than_its_bytes() {
    child::alone("manifests::no_manifest_takes_much_more_memory_than_its_bytes", async {
        let filled = |head: &str, unit: &str, tail: &str| {
            let count = ((4 << 20) - head.len() - tail.len()) / unit.len();
            [head, &unit.repeat(count), tail].concat()
        };
        let digest = Image::good("x").digest();
        let entry = format!("{{\"digest\":\"{digest}\"}}");
        let mut bench = Bench::new().await;
        for (id, name, content_type, body) in [
            ("B062", "blanks", MANIFEST, " ".repeat(32 << 20)),
            (
                "B062",
                "urls",
                MANIFEST,
                filled(&format!("{{\"config\":{{\"digest\":\"{digest}\",\"urls\":["), "\"\",", "\"\"]}}"),
            ),
            (
                "B062",
                "annotations",
                MANIFEST,
                filled(
                    &format!("{{\"config\":{{\"digest\":\"{digest}\",\"annotations\":{{\"b\":\"\""),
                    ",\"a\":\"\"",
                    "}}}",
                ),
            ),
            ("B062", "unknown", MANIFEST, filled("{\"later\":[", "0,", "0]}")),
            ("B062", "depth", MANIFEST, filled("{\"later\":", "[", "")),
            (
                "B063",
                "layers",
                MANIFEST,
                filled(&format!("{{\"config\":{entry},\"layers\":[{entry}"), &format!(",{entry}"), "]}"),
            ),
            ("B063", "entries", INDEX, filled(&format!("{{\"manifests\":[{entry}"), &format!(",{entry}"), "]}")),
            ("B063", "empty entries", INDEX, filled("{\"manifests\":[{}", ",{}", "]}")),
        ] {
            let asked = format!("/v2/{name}/manifests/v1").replace(' ', "-");
            bench.registry.answer(&asked, Answer::ok(content_type, body));
            let name = format!("{}/{}:v1", bench.registry.host(), name.replace(' ', "-"));
            let (pulled, peak) = child::peak_of(super::case::pull(&bench.engine, &name)).await;
            let error = pulled.expect_err("none of them is an image");
            assert!(peak <= DOCUMENT_MEMORY_MAX, "{id} {name}: {peak} bytes: {}", error.chain());
        }
        bench.hold(vec![]).await;
    });
}
