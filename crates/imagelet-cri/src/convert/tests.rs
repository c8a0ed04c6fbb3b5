//! What goes over the wire comes back, and is encoded as the vectors say.

use imagelet_core::testing::vectors;
use prost::Message;
use serde_json::Value;

use super::*;

fn image() -> Image {
    Image {
        id: ImageId::new("sha256:a"),
        tags: vec!["r:1".into(), "r:2".into()],
        digests: vec!["r@sha256:b".into()],
        size: ByteSize(300),
        user: ImageUser::Uid(0),
        spec: ImageSpec { image: "x".into(), ..ImageSpec::default() },
        pinned: true,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from_digit(digit.into(), 16).unwrap())
        .collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Decodes and encodes again; a field of another number or type would be lost on the way.
fn through<M: Message + Default>(encoded: &[u8]) -> String {
    hex(&M::decode(encoded).unwrap().encode_to_vec())
}

#[test]
fn messages_are_encoded_as_the_vectors_say() {
    for case in vectors("cri-wire.json") {
        let Some(wanted) = case["expected"]["hex"].as_str() else { continue };
        let encoded = bytes(wanted);
        let message = case["input"]["message"].as_str().unwrap();
        let again = match message {
            "ListImagesRequest" => through::<v1::ListImagesRequest>(&encoded),
            "ImageStatusRequest" => through::<v1::ImageStatusRequest>(&encoded),
            "ImageSpec" => through::<v1::ImageSpec>(&encoded),
            "Image" => through::<v1::Image>(&encoded),
            "FilesystemUsage" => through::<v1::FilesystemUsage>(&encoded),
            "ImageFsInfoResponse" => through::<v1::ImageFsInfoResponse>(&encoded),
            "PullImageRequest" => through::<v1::PullImageRequest>(&encoded),
            "PullImageResponse" => through::<v1::PullImageResponse>(&encoded),
            "Container" => through::<v1::Container>(&encoded),
            other => panic!("no such message: {other}"),
        };
        assert_eq!(again, wanted, "{}", case["name"]);
    }
    let sample = image_to_wire(image()).encode_to_vec();
    assert_eq!(
        hex(&sample),
        "0a087368613235363a611203723a311203723a321a0a72407368613235363a6220ac022a003a030a01784001"
    );
}

#[test]
fn every_field_of_the_proto_file_has_the_number_the_vectors_give_it() {
    let proto = include_str!("../../proto/runtime.proto");
    let cases = vectors("cri-wire.json");
    let mut checked = 0;
    for message in cases.iter().filter(|case| case["name"].as_str().unwrap().starts_with("message ")) {
        let name = message["name"].as_str().unwrap().trim_start_matches("message ");
        let Some((_, body)) = proto.split_once(&format!("message {name} {{\n")) else { continue };
        let body = body.split_once("\n}").unwrap().0;
        for line in body.lines().map(str::trim).filter(|line| !line.starts_with("//") && !line.is_empty()) {
            let (declared, number) = line.trim_end_matches(';').rsplit_once(" = ").unwrap();
            let (kind, field) = declared.rsplit_once(' ').unwrap();
            let kind = kind.trim_start_matches("repeated ").replace(' ', "");
            let known = message["expected"]["fields"].as_array().unwrap().iter().find(|known| known["name"] == field);
            let known = known.unwrap_or_else(|| panic!("{name} has no field {field}"));
            assert_eq!(known["number"].as_u64().unwrap().to_string(), number, "{name}.{field}");
            assert_eq!(known["type"].as_str().unwrap(), kind, "{name}.{field}");
            checked += 1;
        }
    }
    assert!(checked > 120, "only {checked} fields were compared");
}

#[test]
fn methods_have_the_paths_the_vectors_give_them() {
    let code = include_str!("../v1.rs");
    for case in vectors("cri-wire.json") {
        let Some(path) = case["expected"]["path"].as_str() else { continue };
        let left_out = ["/StreamPodSandboxes", "/StreamContainers", "/RuntimeConfig"];
        assert_eq!(code.contains(path), !left_out.iter().any(|name| path.ends_with(name)), "{path}");
    }
}

#[test]
fn an_image_comes_back_as_it_was() {
    let spec = ImageSpec {
        image: String::new(),
        runtime_handler: "kata".into(),
        annotations: vec![("a".into(), "1".into()), ("b".into(), "2".into())],
    };
    for image in [
        image(),
        Image { user: ImageUser::Name("www-data".into()), spec, ..image() },
        Image { user: ImageUser::Unset, spec: ImageSpec::default(), size: ByteSize(u64::MAX), ..image() },
        Image { user: ImageUser::Uid(-1), tags: Vec::new(), digests: Vec::new(), pinned: false, ..image() },
    ] {
        assert_eq!(image_from_wire(image_to_wire(image.clone())), image);
    }
}

#[test]
fn all_ways_to_ask_for_everything_are_one() {
    let filter = |image| Some(v1::ImageFilter { image });
    assert_eq!(filter_from_wire(None), None);
    assert_eq!(filter_from_wire(filter(None)), None);
    assert_eq!(filter_from_wire(filter(Some(v1::ImageSpec::default()))), None);
    let named = v1::ImageSpec { image: "busybox".into(), ..v1::ImageSpec::default() };
    assert_eq!(filter_from_wire(filter(Some(named))), Some(ImageSpec::new("busybox")));
}

#[test]
fn a_pull_comes_back_as_it_was() {
    let request = PullRequest {
        image: ImageSpec::new("r.example/app:v1"),
        credential: Some(imagelet_core::credentials::Credential::basic(
            "r.example",
            "bob",
            imagelet_core::credentials::Secret::new("hunter2"),
        )),
        sandbox: Some(SandboxConfig { name: "p".into(), namespace: "n".into(), uid: "u".into() }),
        platform: None,
    };
    let back = pull_from_wire(pull_to_wire(&request)).unwrap();
    assert_eq!((back.image, back.credential, back.sandbox), (request.image, request.credential, request.sandbox));
}

#[test]
fn both_filesystem_lists_are_filled_and_nothing_is_absent() {
    let usage = FilesystemUsage {
        measured_at: SystemTime::UNIX_EPOCH,
        mountpoint: "/var/lib/imagelet".into(),
        used: ByteSize(7),
        inodes_used: None,
    };
    let wire = filesystems_to_wire(&ImageFilesystems { images: vec![usage], containers: Vec::new() });
    assert_eq!(wire.image_filesystems, wire.container_filesystems);
    assert_eq!(wire.image_filesystems[0].timestamp, 1, "a timestamp is above zero");
    assert_eq!(wire.image_filesystems[0].inodes_used, Some(v1::UInt64Value { value: 0 }));
    assert_eq!(wire.image_filesystems[0].used_bytes, Some(v1::UInt64Value { value: 7 }));

    let bare = v1::ImageFsInfoResponse {
        image_filesystems: vec![v1::FilesystemUsage { timestamp: -5, ..v1::FilesystemUsage::default() }],
        container_filesystems: Vec::new(),
    };
    let read = filesystems_from_wire(bare);
    assert_eq!(read.images, read.containers);
    assert_eq!((read.images[0].used, read.images[0].inodes_used), (ByteSize::ZERO, None));
}

#[test]
fn times_of_any_size_are_the_nearest_there_is() {
    for instant in [0, 1, -1, i64::MAX, i64::MIN + 1] {
        assert_eq!(nanoseconds(time(instant)), instant);
    }
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
    assert_eq!(nanoseconds(far), i64::MAX);
}

#[test]
fn a_container_keeps_what_says_which_image_it_holds() {
    let read = container_from_wire(v1::Container {
        id: "c".into(),
        pod_sandbox_id: "s".into(),
        metadata: Some(v1::ContainerMetadata { name: "web".into(), attempt: 2 }),
        image: Some(v1::ImageSpec { image: "x".into(), runtime_handler: "kata".into(), ..v1::ImageSpec::default() }),
        image_ref: "r".into(),
        image_id: "sha256:i".into(),
        state: v1::ContainerState::ContainerExited as i32,
        created_at: 5,
        ..v1::Container::default()
    });
    assert_eq!((read.id.as_str(), read.sandbox_id.as_str(), read.name.as_str()), ("c", "s", "web"));
    assert_eq!((read.image.image.as_str(), read.image.runtime_handler.as_str()), ("x", "kata"));
    assert_eq!(
        (read.image_ref.as_str(), read.image_id.as_str(), read.state),
        ("r", "sha256:i", ContainerState::Exited)
    );
}

#[test]
fn image_volumes_tell_both_their_names_once() {
    let mount = |image: &str, image_ref: &str| v1::Mount {
        image: Some(v1::ImageSpec { image: image.into(), image_ref: image_ref.into(), ..v1::ImageSpec::default() }),
        ..v1::Mount::default()
    };
    let mounts = vec![mount("b", "sha256:1"), v1::Mount::default(), mount("sha256:1", ""), mount("", "")];
    assert_eq!(volumes_from_wire(v1::ContainerStatus { mounts, ..v1::ContainerStatus::default() }), ["b", "sha256:1"]);
}

#[test]
fn responses_are_checked_as_the_vectors_say() {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    for case in vectors("cri-response-checks.json") {
        let status = &case["input"]["status"];
        let result = match case["input"]["kind"].as_str().unwrap() {
            "VersionResponse" => check_version(&v1::VersionResponse {
                version: text(status, "version"),
                runtime_name: text(status, "runtime_name"),
                runtime_version: text(status, "runtime_version"),
                runtime_api_version: text(status, "runtime_api_version"),
            }),
            "ContainerStatus" => check_container_status(&v1::ContainerStatus {
                id: text(status, "id"),
                metadata: status
                    .get("metadata")
                    .map(|metadata| v1::ContainerMetadata { name: text(metadata, "name"), attempt: 0 }),
                created_at: status["created_at"].as_i64().unwrap_or(0),
                image: status
                    .get("image")
                    .map(|spec| v1::ImageSpec { image: text(spec, "image"), ..Default::default() }),
                image_ref: text(status, "image_ref"),
                ..v1::ContainerStatus::default()
            }),
            _ => continue,
        };
        match case["expected"]["error_prefix"].as_str() {
            None => assert!(result.is_ok(), "{}", case["name"]),
            Some(prefix) => assert!(result.unwrap_err().to_string().starts_with(prefix), "{}", case["name"]),
        }
    }
}
