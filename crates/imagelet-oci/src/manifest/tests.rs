//! Valid and invalid documents as registries send them.

use futures_util::FutureExt as _;
use imagelet_core::{
    error::RuntimeErrorKind::{self, Corrupt, Unacceptable},
    image::Platform,
};

use super::{selection::IndexMatch, *};

const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const OCI: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn entry(platform: &str) -> String {
    format!(r#"{{"mediaType":"{OCI}","digest":"sha256:{HEX}","size":1{platform}}}"#)
}

fn index(entries: &[&str]) -> Index {
    let entries: Vec<String> = entries
        .iter()
        .map(|text| {
            let parts: Vec<&str> = text.split('/').collect();
            let variant = parts.get(2).map(|variant| format!(r#","variant":"{variant}""#)).unwrap_or_default();
            entry(&format!(r#","platform":{{"os":"{}","architecture":"{}"{variant}}}"#, parts[0], parts[1]))
        })
        .collect();
    let text = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, entries.join(","));
    match ManifestDocument::parse(text.as_bytes(), INDEX).unwrap() {
        ManifestDocument::Index(index) => index,
        ManifestDocument::Image(_) => panic!("an index was read as an image"),
    }
}

#[test]
fn the_best_entry_for_a_platform_is_chosen() {
    for (wanted, offered, chosen) in [
        ("linux/amd64", vec!["linux/arm64", "linux/amd64"], Some(1)),
        ("linux/amd64", vec!["windows/amd64", "linux/x86_64"], Some(1)),
        ("linux/amd64", vec!["linux/amd64/v3", "linux/amd64/v1"], Some(1)),
        ("linux/amd64", vec!["linux/amd64/v3"], None),
        ("linux/amd64/v3", vec!["linux/amd64", "linux/amd64/v2", "linux/amd64/v4"], Some(1)),
        ("linux/arm64", vec!["linux/arm/v7", "linux/arm64/v8"], Some(1)),
        ("linux/arm64/v8", vec!["linux/arm64"], Some(0)),
        ("linux/arm/v6", vec!["linux/arm/v7", "linux/arm/v5"], Some(1)),
        ("linux/arm", vec!["linux/arm/v6", "linux/arm/v7"], Some(1)),
        ("linux/riscv64", vec!["linux/amd64", "unknown/unknown"], None),
        ("linux/amd64", vec![], None),
    ] {
        let index = index(&offered);
        let wanted: Platform = wanted.parse().unwrap();
        let found = index.chosen_alone(&wanted).map(|(found, _)| {
            index.manifests.iter().position(|entry| std::ptr::eq(entry, found)).expect("chosen from the index")
        });
        assert_eq!(found, chosen, "{wanted} of {offered:?}");
    }
}

/// A source without documents: only the index decides.
struct IndexAlone;

impl DocumentSource for IndexAlone {
    type Document = ();

    async fn manifest(&self, _: &Descriptor) -> Result<((), ManifestDocument), RuntimeError> {
        unreachable!("no entry is for the platform")
    }

    async fn config(&self, _: &Manifest) -> Result<ImageConfig, RuntimeError> {
        unreachable!("there is no manifest")
    }
}

#[test]
fn a_platform_that_is_not_offered_is_refused_with_those_that_are() {
    let (index, wanted) = (index(&["linux/arm64/v8", "linux/s390x"]), "linux/amd64".parse().unwrap());
    let error = select(&IndexAlone, index, 1, &wanted).now_or_never().unwrap().unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Unacceptable);
    assert!(error.to_string().contains("linux/arm64/v8, linux/s390x"), "{error}");
}

#[test]
fn an_entry_without_platform_is_the_last_resort() {
    let text =
        format!(r#"{{"manifests":[{},{}]}}"#, entry(""), entry(r#","platform":{"os":"linux","architecture":"amd64"}"#));
    let ManifestDocument::Index(index) = ManifestDocument::parse(text.as_bytes(), INDEX).unwrap() else { panic!() };
    let is_named = |platform: &str| match index.choose(&platform.parse().unwrap()) {
        IndexMatch::Named(entry) => entry.platform.is_some(),
        IndexMatch::Unnamed(entries) => entries[0].platform.is_some(),
    };
    assert!(is_named("linux/amd64"));
    assert!(!is_named("linux/s390x"));
}

#[test]
fn what_go_accepts_is_accepted() {
    for text in [
        format!(r#"{{"schemaVersion":2,"config":{},"layers":null}}"#, entry("")),
        format!(r#"{{"config":{}}}"#, entry(r#","urls":null,"annotations":null,"platform":null"#)),
        format!(r#"{{"mediaType":null,"config":{},"layers":[],"later":{{"a":1}}}}"#, entry("")),
    ] {
        let document = ManifestDocument::parse(text.as_bytes(), OCI);
        assert!(matches!(&document, Ok(ManifestDocument::Image(image)) if image.layers.is_empty()), "{document:?}");
    }
    assert_eq!(ManifestDocument::parse(br#"{"manifests":null}"#, INDEX).unwrap(), {
        ManifestDocument::Index(Index { manifests: Vec::new() })
    });
}

#[test]
fn a_document_is_what_it_and_its_transport_agree_on() {
    let body = |media: &str| format!(r#"{{"mediaType":"{media}","config":{}}}"#, entry(""));
    assert!(ManifestDocument::parse(body(OCI).as_bytes(), "").is_ok());
    assert!(ManifestDocument::parse(body(OCI).as_bytes(), &format!("{OCI}; charset=utf-8")).is_ok());
    let error = ManifestDocument::parse(body(OCI).as_bytes(), INDEX).unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Corrupt);
    assert!(error.to_string().contains(OCI) && error.to_string().contains(INDEX), "{error}");
    let error = ManifestDocument::parse(body("application/x").as_bytes(), "").unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Unacceptable);
}

#[test]
fn docker_and_oci_names_of_one_kind_are_one_kind_and_the_document_says_which() {
    let image = |media: &str| format!(r#"{{"mediaType":"{media}","config":{}}}"#, entry(""));
    let index = |media: &str| format!(r#"{{"mediaType":"{media}","manifests":[{}]}}"#, entry(""));
    let (docker, list) = (
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    );
    for (of, own, transport, is_taken) in [
        (&index as &dyn Fn(&str) -> String, INDEX, list, true),
        (&index, list, INDEX, true),
        (&index, INDEX, "application/vnd.docker.distribution.manifest.list.v2+json; charset=utf-8", true),
        (&image, OCI, docker, true),
        (&image, docker, OCI, true),
        (&image, docker, list, false),
        (&image, OCI, list, false),
        (&index, INDEX, docker, false),
        (&index, list, OCI, false),
    ] {
        let read = ManifestDocument::parse_named(of(own).as_bytes(), transport);
        assert_eq!(
            read.as_ref().ok().map(|(_, media_type)| &**media_type),
            is_taken.then_some(own),
            "{own} {transport}"
        );
        if let Err(error) = read {
            assert_eq!(error.kind(), RuntimeErrorKind::Corrupt, "{own} {transport}");
        }
    }
}

#[test]
fn hostile_documents_are_refused() {
    let many = |count: usize| vec![entry(""); count].join(",");
    let descriptor =
        |digest: &str, size: &str| format!(r#"{{"config":{{"mediaType":"a","digest":"{digest}","size":{size}}}}}"#);
    let good = format!("sha256:{HEX}");
    for (name, text, content_type, kind) in [
        ("html", "<html>".to_owned(), "text/html", Corrupt),
        ("empty", String::new(), OCI, Corrupt),
        ("deep", "[".repeat(100_000), OCI, Corrupt),
        ("both", format!(r#"{{"config":{0},"layers":[{0}],"manifests":[{0}]}}"#, entry("")), OCI, Unacceptable),
        ("layers in an index", format!(r#"{{"layers":[{0}],"manifests":[{0}]}}"#, entry("")), INDEX, Unacceptable),
        ("index as image", format!(r#"{{"manifests":[{}]}}"#, entry("")), OCI, Corrupt),
        ("nothing", "{}".to_owned(), OCI, Corrupt),
        ("schema 1", r#"{"schemaVersion":1,"fsLayers":[]}"#.to_owned(), "", Unacceptable),
        ("501 layers", format!(r#"{{"config":{},"layers":[{}]}}"#, entry(""), many(501)), OCI, Unacceptable),
        ("1001 entries", format!(r#"{{"manifests":[{}]}}"#, many(1001)), INDEX, Unacceptable),
        ("too long", " ".repeat(5 << 20), OCI, Unacceptable),
        ("repeated key", format!(r#"{{"config":{0},"config":{0}}}"#, entry("")), OCI, Corrupt),
        ("negative size", descriptor(&good, "-1"), OCI, Corrupt),
        ("huge size", descriptor(&good, "1e30"), OCI, Corrupt),
        ("larger than Go's", descriptor(&good, "9223372036854775808"), OCI, Corrupt),
        ("md5", descriptor("md5:00", "1"), OCI, Corrupt),
        ("short", descriptor("sha256:00", "1"), OCI, Corrupt),
        ("path", descriptor("sha256:../../etc", "1"), OCI, Corrupt),
        ("upper case", descriptor(&good.to_uppercase(), "1"), OCI, Corrupt),
    ] {
        let error = ManifestDocument::parse(text.as_bytes(), content_type).expect_err(name);
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.chain().len() < 600, "{name}: the message is as long as the input");
    }
}

#[test]
fn a_forward_does_not_cure_too_many_layers() {
    let layers = vec![entry(""); 501].join(",");
    let text = format!(r#"{{"config":{},"layers":[{layers}]}}"#, entry(""));
    let error = ManifestDocument::parse(text.as_bytes(), OCI).expect_err("501 layers");
    assert_eq!(error.fault(), Fault::new(ErrorClass::Unacceptable, Stage::Unpack));
}

#[test]
fn each_layer_type_is_unpacked_or_refused_by_name() {
    for (media_type, kind) in [
        ("application/vnd.oci.image.layer.v1.tar", LayerKind::Tar(Compression::None)),
        ("application/vnd.oci.image.layer.v1.tar+gzip", LayerKind::Tar(Compression::Gzip)),
        ("application/vnd.oci.image.layer.v1.tar+zstd", LayerKind::Tar(Compression::Zstd)),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", LayerKind::Tar(Compression::Gzip)),
        ("application/vnd.docker.image.rootfs.diff.tar", LayerKind::Tar(Compression::None)),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", LayerKind::Foreign(Compression::Gzip)),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", LayerKind::Foreign(Compression::Gzip)),
        ("application/vnd.oci.image.layer.v1.tar+gzip+encrypted", LayerKind::Encrypted),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip+enc", LayerKind::Encrypted),
        ("application/vnd.oci.image.layer.v1.tar+lzma", LayerKind::Unknown),
        ("", LayerKind::Unknown),
    ] {
        assert_eq!(LayerKind::of(media_type), kind, "{media_type}");
        let descriptor: Descriptor =
            serde_json::from_str(&format!(r#"{{"mediaType":"{media_type}","digest":"sha256:{HEX}","size":1}}"#))
                .unwrap();
        match descriptor.layer_compression() {
            Ok(compression) => assert!([LayerKind::Tar(compression), LayerKind::Foreign(compression)].contains(&kind)),
            Err(error) => {
                assert_eq!(error.kind(), RuntimeErrorKind::Unacceptable);
                assert!(error.to_string().contains(HEX), "{error}");
            }
        }
    }
}

#[test]
fn a_configuration_is_read_as_written() {
    let config = ImageConfig::parse(
        format!(
            r#"{{"architecture":"amd64","os":"linux","config":{{"User":"1000:1000","Env":["A=b"],"Cmd":null,
               "Entrypoint":["/x"],"WorkingDir":"/w","Labels":null,"Volumes":{{"/../v":{{}}}}}},
               "rootfs":{{"type":"layers","diff_ids":["sha256:{HEX}"]}},"history":[{{}}]}}"#
        )
        .as_bytes(),
    )
    .unwrap();
    assert_eq!(config.user, "1000:1000");
    assert_eq!(config.diff_ids.len(), 1);
    assert!(config.platform.check(&"linux/amd64".parse().unwrap()).is_ok());
    assert!(config.platform.check(&"linux/arm64".parse().unwrap()).is_err());
}

#[test]
fn a_configuration_may_say_nothing_but_not_nonsense() {
    for text in [r#"{"rootfs":{}}"#, r#"{"config":null,"rootfs":{"type":"layers"}}"#, r#"{"rootfs":{"diff_ids":null}}"#]
    {
        let config = ImageConfig::parse(text.as_bytes()).unwrap();
        assert_eq!(config, ImageConfig::default(), "{text}");
        assert!(config.platform.check(&"linux/arm64".parse().unwrap()).is_ok());
    }
    let windows = ImageConfig::parse(br#"{"os":"windows","rootfs":{}}"#).unwrap();
    assert!(windows.platform.check(&"linux/amd64".parse().unwrap()).is_err(), "a system alone counts as well");
    for text in ["", "<html>", "[]", "{}", r#"{"rootfs":null}"#, r#"{"rootfs":{"diff_ids":["sha256:0"]}}"#] {
        assert_eq!(ImageConfig::parse(text.as_bytes()).unwrap_err().kind(), RuntimeErrorKind::Corrupt, "{text}");
    }
}

#[test]
fn a_long_text_in_the_wrong_place_is_not_quoted_at_length() {
    let text = format!(r#"{{"layers":"{}"}}"#, "é".repeat(1 << 20));
    for error in [
        ManifestDocument::parse(text.as_bytes(), "").unwrap_err(),
        ImageConfig::parse(text.replace("layers", "rootfs").as_bytes()).unwrap_err(),
    ] {
        let message = error.chain();
        assert!(
            message.contains("éé…") && message.ends_with(&format!("at line 1 column {}", text.len() - 1)),
            "{message:.600}"
        );
        assert!(message.len() < 512, "{} bytes", message.len());
    }
    let short = ManifestDocument::parse(br#"{"layers":"x"}"#, "").unwrap_err().chain();
    assert!(short.ends_with("invalid type: string \"x\", expected a list at line 1 column 13"), "{short}");
}

type Write<'a> = &'a dyn Fn(&str) -> String;
type Read = fn(&str) -> Result<(), RuntimeError>;

#[test]
fn a_document_is_nested_128_levels_at_most_also_where_nothing_reads_it() {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let manifest = |field: &str| {
        let config = format!(r#"{{"digest":"sha256:{HEX}","size":1}}"#);
        format!(r#"{{"schemaVersion":2,"mediaType":"{OCI}","config":{config},"layers":[],{field}}}"#)
    };
    let index = |field: &str| format!(r#"{{"schemaVersion":2,"mediaType":"{INDEX}","manifests":[],{field}}}"#);
    let config = |field: &str| format!(r#"{{"rootfs":{{"diff_ids":[]}},{field}}}"#);
    let document: Read = |text| ManifestDocument::parse(text.as_bytes(), "").map(drop);
    let configuration: Read = |text| ImageConfig::parse(text.as_bytes()).map(drop);
    let documents: [(Write<'_>, Read); 3] = [(&manifest, document), (&index, document), (&config, configuration)];
    for (of, read) in documents {
        let beside = |levels: usize| read(&of(&format!(r#""unread":{}"#, deep(levels - 1))));
        beside(127).and_then(|()| beside(128)).expect("no deeper than that");
        for levels in [129, 400_000] {
            let error = beside(levels).expect_err("deeper").chain();
            let message = format!("nested {levels} levels deep; more than 128 are refused");
            assert!(error.contains(&message), "{error}");
        }
        // Brackets in strings do not nest.
        for text in ["[".repeat(200), r#"\"[{"#.repeat(200), format!(r"\\{}", "{".repeat(200))] {
            read(&of(&format!(r#""unread":"{text}""#))).expect(&text);
        }
        let hidden = of(&format!(r#""unread":["\\",{}]"#, deep(200)));
        read(&hidden).expect_err("the text ends before the levels");
    }
}

#[test]
fn what_is_kept_of_a_document_has_few_texts_whatever_its_size() {
    let long = "x".repeat(TEXT_BYTES_MAX);
    let manifest = |config: &str, layer: &str| {
        let text = format!(
            r#"{{"schemaVersion":2,"mediaType":"{OCI}","config":{{"digest":"sha256:{HEX}","size":1{config}}},
                "layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:{HEX}","size":1{layer}}}]}}"#
        );
        match ManifestDocument::parse(text.as_bytes(), "").expect("a manifest") {
            ManifestDocument::Image(manifest) => manifest.check_layers(),
            ManifestDocument::Index(_) => panic!("it has layers"),
        }
    };
    let config =
        |fields: &str| ImageConfig::parse(format!(r#"{{"rootfs":{{"diff_ids":[]}}{fields}}}"#).as_bytes()).map(drop);
    let title =
        |text: &str| format!(r#","annotations":{{"org.opencontainers.image.title":"{text}","other":"{long}"}}"#);
    let user = |text: &str| format!(r#","config":{{"User":"{text}"}},"other":"{long}""#);
    manifest("", &title("short")).and_then(|()| config(&user("short"))).expect("what is not kept does not count");
    for refused in [
        manifest("", &title(&long)),
        manifest("", &format!(r#","platform":{{"os":"{long}"}}"#)),
        manifest(&format!(r#","platform":{{"variant":"{long}x"}}"#), ""),
        config(&user(&format!("{long}x"))),
        config(&format!(r#","variant":"{long}","os":"linux""#)),
    ] {
        let error = refused.expect_err("it would stay in memory");
        assert_eq!(error.kind(), RuntimeErrorKind::Unacceptable);
        assert!(error.to_string().contains("the limit is 4.1kB"), "{error}");
    }
}
