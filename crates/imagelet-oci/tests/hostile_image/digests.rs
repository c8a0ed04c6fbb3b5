//! Bytes that are not what their digest, size or diff-id says.

use imagelet_core::{
    error::RuntimeErrorKind::{Corrupt, InvalidArgument, Unacceptable},
    image::{Digest, DigestAlgorithm},
    ports::ImageService as _,
};
use serde_json::{Value, json};

use super::{
    case::{Bench, Case},
    image::{ARCHITECTURE, Image, Layer, MANIFEST, TAR, digest_by, gzip, tar},
    registry::Answer,
};

fn noise(length: u32) -> Vec<u8> {
    (0..length).flat_map(|number| number.wrapping_mul(0x85eb_ca6b).to_le_bytes()).collect()
}

/// A plain layer; which other bytes come in its place is up to the case.
fn plain() -> Layer {
    let tar = tar(&[("content", &noise(60_000))]);
    Layer::packed(TAR, tar.clone(), &tar).holding("content", &noise(60_000))
}

fn bytes_of(layer: &str) -> Vec<u8> {
    match layer {
        "plain" => tar(&[("content", &noise(60_000))]),
        _ => gzip(&tar(&[("content", &noise(60_000))])),
    }
}

fn packed() -> Layer {
    let tar = tar(&[("content", &noise(60_000))]);
    Layer::packed("application/vnd.oci.image.layer.v1.tar+gzip", gzip(&tar), &tar).holding("content", &noise(60_000))
}

fn flipped(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    bytes[at] ^= 1;
    bytes
}

fn b054() -> Vec<Case> {
    let both = |name: &'static str, layer: Layer, bytes: Vec<u8>| {
        let (wanted, found) = (layer.digest.clone(), Digest::of(&bytes).to_string());
        Case::new("B054", name, Image::of([Layer::gzip("good", b"good"), layer.serving(bytes)]))
            .fails(Corrupt, &[&wanted, &found])
    };
    let image = Image::good("other bytes");
    let config = image.config_digest();
    let other = image.config_bytes().to_vec();
    let other = flipped(other.clone(), other.len() - 3);
    let moved = Image::good("moved").digest();
    let entry = Image::good("entry").below_index(&json!({"os": "linux", "architecture": ARCHITECTURE}));
    let entry_digest = Image::good("entry").digest();
    let same_length = Image::good("entry").edited("schemaVersion\":2", "schemaVersion\":3");
    vec![
        both("plain layer with a bit flipped", plain(), flipped(bytes_of("plain"), 5_000)),
        both("plain layer with a bit flipped in a header", plain(), flipped(bytes_of("plain"), 150)),
        both("packed layer with a bit flipped in its data", packed(), flipped(bytes_of("packed"), 100_000)),
        both("packed layer with a bit flipped in its magic", packed(), flipped(bytes_of("packed"), 0)),
        both("packed layer with a bit flipped at its end", packed(), {
            let bytes = bytes_of("packed");
            let at = bytes.len() - 1;
            flipped(bytes, at)
        }),
        both("layer of zeros", packed(), vec![0; bytes_of("packed").len()]),
        Case::new("B054", "config with a byte changed", image.clone().serving_config(Answer::ok("", other.clone())))
            .fails(Corrupt, &[&config, &Digest::of(&other).to_string()]),
        Case::new("B054", "manifest by another digest", Image::good("asked for"))
            .asked_as(&format!("@{moved}"))
            .answering(&format!("manifests/{moved}"), Answer::ok(MANIFEST, "{\"schemaVersion\":2}"))
            .fails(Corrupt, &[&moved, &Digest::of(b"{\"schemaVersion\":2}").to_string()]),
        Case::new("B054", "index entry with other bytes", entry)
            .answering(&format!("manifests/{entry_digest}"), Answer::ok(MANIFEST, same_length.root_bytes()))
            .fails(Corrupt, &[&entry_digest, &same_length.digest()]),
    ]
}

fn b055() -> Vec<Case> {
    let sized =
        |size: Value| Image::of([Layer::gzip("good", b"good"), plain().described(|layer| layer["size"] = size)]);
    let length = i64::try_from(bytes_of("plain").len()).expect("short");
    let pieces = || Answer::ok("", bytes_of("plain")).in_pieces();
    let with =
        |size: i64, served: Answer| Image::of([plain().described(|layer| layer["size"] = size.into()).served(served)]);
    let digest = plain().digest;
    let (one, more, less) = (length.to_string(), (length + 1).to_string(), (length - 1).to_string());
    vec![
        Case::new("B055", "layer said to be one byte shorter", sized((length - 1).into()))
            .fails(Corrupt, &[&digest, &less, &one]),
        Case::new("B055", "layer said to be one byte longer", sized((length + 1).into()))
            .fails(Corrupt, &[&digest, &more, &one]),
        Case::new("B055", "layer without length said to be shorter", with(length - 1, pieces()))
            .fails(Corrupt, &[&digest, &less]),
        Case::new("B055", "layer without length said to be longer", with(length + 1, pieces()))
            .fails(Corrupt, &[&digest, &more, &one]),
        Case::new("B055", "layer said to be empty", sized(0.into())).fails(Corrupt, &[&digest]),
        Case::new(
            "B055",
            "layer of no bytes",
            Image::of([Layer::gzip("good", b"good"), Layer::packed(TAR, vec![], b"")]),
        ),
        Case::new(
            "B055",
            "layer without a size",
            Image::of([plain().described(|layer| {
                layer.as_object_mut().expect("an object").remove("size");
            })]),
        )
        .fails(Corrupt, &[&digest]),
        Case::new(
            "B055",
            "layer that never ends",
            with(length, Answer::endless("", bytes_of("plain"), vec![0; 64 << 10])),
        )
        .fails(Corrupt, &[&digest, &one]),
        Case::new(
            "B055",
            "layer of eight exbibytes",
            with(i64::MAX, Answer::endless("", bytes_of("plain"), vec![0; 64 << 10])),
        )
        .fails(Unacceptable, &[&digest, "9.22EB"])
        .never_asks("/blobs/"),
        Case::new("B055", "negative", sized((-1).into()))
            .fails(Corrupt, &["size -1 is negative"])
            .never_asks("/blobs/"),
        Case::new(
            "B055",
            "ten to the thirty",
            Image::good("x").edited("\"size\":", "\"size\":1000000000000000000000000000000,\"was\":"),
        )
        .fails(Corrupt, &["not an image manifest"])
        .never_asks("/blobs/"),
        Case::new("B055", "one e30", sized(json!(1e30)))
            .fails(Corrupt, &["not an image manifest"])
            .never_asks("/blobs/"),
        Case::new("B055", "a fraction", sized(json!(1.5)))
            .fails(Corrupt, &["not an image manifest"])
            .never_asks("/blobs/"),
        Case::new("B055", "a text", sized(json!("12")))
            .fails(Corrupt, &["not an image manifest"])
            .never_asks("/blobs/"),
        Case::new("B055", "beyond 63 bits", sized(json!(1_u64 << 63)))
            .fails(Corrupt, &["not an image manifest"])
            .never_asks("/blobs/"),
        Case::new(
            "B055",
            "config said to be shorter",
            Image::good("c").manifest(|manifest| manifest["config"]["size"] = 20.into()),
        )
        .fails(Corrupt, &[&Image::good("c").config_digest(), "20"]),
        Case::new(
            "B055",
            "config said to be longer",
            Image::good("c").manifest(|manifest| manifest["config"]["size"] = 2000.into()),
        )
        .fails(Corrupt, &[&Image::good("c").config_digest(), "2000"]),
        Case::new(
            "B055",
            "index entry of another size",
            Image::good("s")
                .below_index(&json!({"os": "linux", "architecture": ARCHITECTURE}))
                .manifest(|index| index["manifests"][0]["size"] = 7.into()),
        )
        .fails(Corrupt, &["not 7 as the index says"]),
    ]
}

fn b056() -> Vec<Case> {
    const BAD: [(&str, &str, &str); 12] = [
        ("md5 layer", "md5 config", "md5:d41d8cd98f00b204e9800998ecf8427e"),
        ("unknown layer", "unknown config", "blake3:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("short layer", "short config", "sha256:e3b0c44298fc1c149afbf4c8996fb924"),
        ("long layer", "long config", "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b85500"),
        (
            "upper case layer",
            "upper case config",
            "sha256:E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855",
        ),
        (
            "climbing layer",
            "climbing config",
            "sha256:../../../../../../../../../../../../../../../../../../../etc/pass",
        ),
        (
            "climbing algorithm layer",
            "climbing algorithm config",
            "../sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
        ("empty layer", "empty config", ""),
        ("bare layer", "bare config", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("query layer", "query config", "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b785?x=y#"),
        (
            "line break layer",
            "line break config",
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b8\r\n",
        ),
        (
            "other digits layer",
            "other digits config",
            "sha256:é3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
    ];
    let mut cases = Vec::new();
    for (layer, config, digest) in BAD {
        let by_layer = Image::good("d").manifest(|manifest| manifest["layers"][0]["digest"] = digest.into());
        let by_config = Image::good("d").manifest(|manifest| manifest["config"]["digest"] = digest.into());
        for (name, image) in [(layer, by_layer), (config, by_config)] {
            cases.push(
                Case::new("B056", name, image)
                    .fails(Corrupt, &["not an image manifest", "digest"])
                    .never_asks("/blobs/")
                    .never_asks(".."),
            );
        }
    }
    let entry = Image::good("d")
        .below_index(&json!({"os": "linux", "architecture": ARCHITECTURE}))
        .manifest(|index| index["manifests"][0]["digest"] = "sha256:../../../../blobs/uploads".into());
    cases.push(Case::new("B056", "index entry", entry).fails(Corrupt, &["not an image manifest"]).never_asks("sha256"));
    let diff_id =
        Image::good("d").config(|config| config["rootfs"]["diff_ids"][0] = "sha256:../../../../../../etc".into());
    cases.push(Case::new("B056", "diff-id", diff_id).fails(Corrupt, &["configuration", "digest"]));
    for (name, suffix) in [
        ("asked for by md5", "@md5:d41d8cd98f00b204e9800998ecf8427e"),
        ("asked for by half of one", "@sha256:e3b0c442"),
    ] {
        cases.push(
            Case::new("B056", name, Image::good("d"))
                .asked_as(suffix)
                .fails(InvalidArgument, &[suffix])
                .never_asks("/"),
        );
    }
    cases
}

fn b057() -> Vec<Case> {
    use DigestAlgorithm::{Sha384, Sha512};
    let blob = bytes_of("packed");
    let tar = bytes_of("plain");
    let by = |algorithm| packed().described(|layer| layer["digest"] = digest_by(algorithm, &blob).into());
    let wrong = digest_by(Sha512, b"something else");
    let manifest = Image::good("by sha512");
    let (bytes, _) = manifest.root();
    let right = digest_by(Sha512, &bytes);
    vec![
        Case::new("B057", "layer by sha512", Image::of([by(Sha512)])),
        Case::new("B057", "layer by sha384", Image::of([by(Sha384)])),
        Case::new("B057", "diff-id by sha512", Image::of([packed().diff_id(&digest_by(Sha512, &tar))])),
        Case::new("B057", "manifest by sha512", manifest.clone())
            .asked_as(&format!("@{right}"))
            .answering(&format!("manifests/{right}"), Answer::ok(MANIFEST, bytes.clone())),
        Case::new(
            "B057",
            "layer by a wrong sha512",
            Image::of([packed().described(|layer| layer["digest"] = wrong.clone().into())]),
        )
        .fails(Corrupt, &[&wrong, &digest_by(Sha512, &blob)]),
        Case::new("B057", "diff-id by a wrong sha512", Image::of([packed().diff_id(&wrong)]))
            .fails(Corrupt, &[&wrong, &digest_by(Sha512, &tar)]),
        Case::new("B057", "manifest by a wrong sha512", manifest)
            .asked_as(&format!("@{wrong}"))
            .answering(&format!("manifests/{wrong}"), Answer::ok(MANIFEST, bytes))
            .fails(Corrupt, &[&wrong, &right]),
    ]
}

fn b058() -> Vec<Case> {
    let other = Digest::of(b"other").to_string();
    let right = packed().diff_id;
    let pair = || Image::of([Layer::gzip("one", b"1"), packed()]);
    vec![
        Case::new("B058", "wrong", Image::of([packed().diff_id(&other)]))
            .fails(Corrupt, &[&other, &right, &packed().digest]),
        Case::new("B058", "that of the packed layer", Image::of([packed().diff_id(&packed().digest)]))
            .fails(Corrupt, &[&right]),
        Case::new(
            "B058",
            "too few",
            pair().config(|config| {
                config["rootfs"]["diff_ids"].as_array_mut().expect("a list").pop();
            }),
        )
        .fails(Corrupt, &["2 layers", "1"]),
        Case::new("B058", "none", pair().config(|config| config["rootfs"]["diff_ids"] = json!([])))
            .fails(Corrupt, &["2 layers", "0"]),
        Case::new(
            "B058",
            "too many",
            pair().config(|config| {
                config["rootfs"]["diff_ids"].as_array_mut().expect("a list").push(other.clone().into());
            }),
        )
        .fails(Corrupt, &["2 layers", "3"]),
        Case::new(
            "B058",
            "exchanged",
            pair().config(|config| config["rootfs"]["diff_ids"].as_array_mut().expect("a list").reverse()),
        )
        .fails(Corrupt, &[&right]),
        Case::new("B058", "not a list", pair().config(|config| config["rootfs"]["diff_ids"] = json!({"0": "x"})))
            .fails(Corrupt, &["configuration"]),
        Case::new(
            "B058",
            "501 of them",
            pair().config(|config| config["rootfs"]["diff_ids"] = json!(vec![other.clone(); 501])),
        )
        .fails(Unacceptable, &["501 diff ids", "500"]),
    ]
}

fn b059() -> Vec<Case> {
    let claims = |name: &'static str, claim: &str| {
        let image = Image::good("claims");
        let (bytes, content_type) = image.root();
        let answer = Answer::ok(&content_type, bytes).header("docker-content-digest", claim);
        Case::new("B059", name, image).answering("manifests/v1", answer)
    };
    let other = Digest::of(b"other").to_string();
    let own = Image::good("claims");
    let (bytes, _) = own.root();
    vec![
        claims("true", &own.digest()),
        claims("true by sha512", &digest_by(DigestAlgorithm::Sha512, &bytes)),
        claims("another", &other).fails(Corrupt, &[&other, &own.digest()]).never_asks("/blobs/"),
        claims("no digest", "latest").fails(Corrupt, &["`latest`"]).never_asks("/blobs/"),
        claims("md5", "md5:d41d8cd98f00b204e9800998ecf8427e").fails(Corrupt, &["md5:"]).never_asks("/blobs/"),
        claims("a path", "sha256:../../x").fails(Corrupt, &["no digest"]).never_asks("/blobs/"),
        Case::new("B059", "another when asked by digest", Image::good("claims"))
            .asked_as(&format!("@{}", own.digest()))
            .answering(
                &format!("manifests/{}", own.digest()),
                Answer::ok(MANIFEST, bytes).header("docker-content-digest", &other),
            )
            .fails(Corrupt, &[&other]),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    [b054(), b055(), b056(), b057(), b058(), b059()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_not_what_its_digest_says_is_refused_by_both_digests() {
    Bench::new().await.hold(b054()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_not_as_long_as_it_is_said_is_refused() {
    Bench::new().await.hold(b055()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_digest_is_refused_before_any_request() {
    Bench::new().await.hold(b056()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn longer_digests_are_held_to_like_the_usual_one() {
    Bench::new().await.hold(b057()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_is_what_the_configuration_says_or_refused() {
    Bench::new().await.hold(b058()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_registry_says_of_a_digest_is_checked() {
    Bench::new().await.hold(b059()).await;
}

/// A tag that moves while it is pulled: what was resolved first is what is pulled.
#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_moves_leaves_one_consistent_image() {
    let bench = Bench::new().await;
    let platform = json!({"os": "linux", "architecture": ARCHITECTURE});
    let first = Image::good("first").below_index(&platform);
    let second = Image::good("second").below_index(&platform);
    for round in 0..10 {
        let name = bench.registry.put("moves", if round % 2 == 0 { &first } else { &second });
        let (pulled, ()) = tokio::join!(super::case::pull(&bench.engine, &name), async {
            tokio::task::yield_now().await;
            bench.registry.put("moves", if round % 2 == 0 { &second } else { &first });
        });
        let id = pulled.unwrap_or_else(|error| panic!("{}", error.chain()));
        assert!([first.config_digest(), second.config_digest()].contains(&id.to_string()));
        let listed = bench.status(&name).await.expect("it is there");
        assert_eq!(listed.id, id);
        let details =
            bench.engine.details(&imagelet_core::image::ImageSpec::new(&name)).await.expect("details").expect("there");
        let chosen = if id.as_str() == first.config_digest() { &first } else { &second };
        assert_eq!(details.layers[0].diff_id.as_str(), chosen.layers[0].diff_id);
    }
}
