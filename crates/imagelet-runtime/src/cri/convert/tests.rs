//! Round trips of wire messages, and their encoding against the test vectors.

use std::time::Duration;

use imagelet_core::credentials::CredentialKind;
use imagelet_vectors::vectors;
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
        artifact: None,
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

/// Decodes and encodes again; a field of another number or type would be lost.
fn through<M: Message + Default>(encoded: &[u8]) -> String {
    hex(&M::decode(encoded).unwrap().encode_to_vec())
}

/// A message's fields in the vectors' schema: number, type, repeated or not.
fn schema<'a>(cases: &'a [Value], message: &str) -> &'a [Value] {
    let name = format!("message {message}");
    let case = cases.iter().find(|case| case["name"] == name.as_str()).unwrap_or_else(|| panic!("no {name}"));
    case["expected"]["fields"].as_array().unwrap()
}

/// Encodes a value by the vectors' schema alone, without our types.
fn encoded(cases: &[Value], message: &str, value: &Value) -> Vec<u8> {
    let varint = |mut number: u64, out: &mut Vec<u8>| {
        while number >= 0x80 {
            out.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
            number >>= 7;
        }
        out.push(u8::try_from(number).unwrap());
    };
    let mut out = Vec::new();
    for field in schema(cases, message) {
        let Some(value) = value.get(field["name"].as_str().unwrap()) else { continue };
        let (number, kind) = (field["number"].as_u64().unwrap(), field["type"].as_str().unwrap());
        let mut blob = |bytes: &[u8]| {
            varint(number << 3 | 2, &mut out);
            varint(bytes.len() as u64, &mut out);
            out.extend_from_slice(bytes);
        };
        match (kind, value) {
            (_, Value::Array(texts)) => texts.iter().for_each(|text| match text {
                Value::String(text) => blob(text.as_bytes()),
                message => blob(&encoded(cases, kind, message)),
            }),
            ("map<string,string>", Value::Object(pairs)) => pairs.iter().for_each(|(key, value)| {
                let value = value.as_str().unwrap();
                let (key_length, length) = (u8::try_from(key.len()).unwrap(), u8::try_from(value.len()).unwrap());
                blob(&[&[0x0a, key_length], key.as_bytes(), &[0x12, length], value.as_bytes()].concat());
            }),
            (_, Value::Object(_)) => blob(&encoded(cases, kind, value)),
            ("string", Value::String(text)) if !text.is_empty() => blob(text.as_bytes()),
            (_, Value::String(text)) if !text.is_empty() => {
                let name = format!("enum {kind}");
                let values = &cases.iter().find(|case| case["name"] == name.as_str()).unwrap()["expected"]["values"];
                varint(number << 3, &mut out);
                varint(values[text.as_str()].as_u64().unwrap(), &mut out);
            }
            (_, Value::Bool(true)) => out.extend([u8::try_from(number << 3).unwrap(), 1]),
            (_, Value::Number(value)) if value.as_u64() != Some(0) => {
                varint(number << 3, &mut out);
                varint(value.as_u64().or(value.as_i64().map(i64::cast_unsigned)).unwrap(), &mut out);
            }
            _ => {}
        }
    }
    out
}

#[test]
fn messages_are_encoded_as_the_vectors_say() {
    let cases = vectors("cri-wire.json");
    assert_eq!(cases.len(), 106);
    let mut ran = 0;
    for case in &cases {
        let Some(wanted) = case["expected"]["hex"].as_str() else { continue };
        let message = case["input"]["message"].as_str().unwrap();
        assert_eq!(hex(&encoded(&cases, message, &case["input"]["value"])), wanted, "{}", case["name"]);
        let encoded = bytes(wanted);
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
        ran += 1;
    }
    assert_eq!(ran, 12);
    let sample = image_to_wire(image()).encode_to_vec();
    assert_eq!(
        hex(&sample),
        "0a087368613235363a611203723a311203723a321a0a72407368613235363a6220ac022a003a030a01784001"
    );
}

#[test]
fn every_message_of_the_proto_file_has_the_fields_that_the_vectors_give_it() {
    let cases = vectors("cri-wire.json");
    let is_enum = |kind: &str| cases.iter().any(|case| case["name"] == format!("enum {kind}").as_str());
    let is_known = |message: &str| cases.iter().any(|case| case["name"] == format!("message {message}").as_str());
    let (mut message, mut count) = ("", 0);
    for line in include_str!("../../../proto/cri/runtime.proto").lines().map(str::trim) {
        if let Some(head) = line.strip_prefix("message ") {
            message = head.trim_end_matches(" {");
            count += usize::from(is_known(message));
        }
        if !is_known(message) {
            continue;
        }
        let Some((declared, number)) = line.trim_end_matches(';').rsplit_once(" = ") else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        let (kind, name) = declared.rsplit_once(' ').unwrap();
        let field = schema(&cases, message).iter().find(|field| field["name"] == name);
        let field = field.unwrap_or_else(|| panic!("{message} has no {name}"));
        let wanted = field["type"].as_str().unwrap();
        let wanted = match (field["repeated"] == true, wanted) {
            (true, wanted) => format!("repeated {wanted}"),
            (false, "PodSandboxConfig") => "optional bytes".to_owned(),
            (false, wanted) if is_enum(wanted) => "int32".to_owned(),
            (false, wanted) => wanted.to_owned(),
        };
        assert_eq!((kind.replace(", ", ","), Some(number)), (wanted, field["number"].as_u64()), "{message}.{name}");
    }
    assert_eq!(count, 35);
}

#[test]
fn states_and_drivers_have_the_numbers_that_the_vectors_give_them() {
    let cases = vectors("cri-wire.json");
    let number = |name: &str, value: &str| {
        let name = format!("enum {name}");
        let values = cases.iter().find(|case| case["name"] == name.as_str()).unwrap();
        i32::try_from(values["expected"]["values"][value].as_i64().unwrap()).unwrap()
    };
    for (value, state) in [
        ("CONTAINER_CREATED", ContainerState::Created),
        ("CONTAINER_RUNNING", ContainerState::Running),
        ("CONTAINER_EXITED", ContainerState::Exited),
        ("CONTAINER_UNKNOWN", ContainerState::Unknown),
    ] {
        let state_number = number("ContainerState", value);
        let container = v1::Container { state: state_number, ..v1::Container::default() };
        assert_eq!(container_from_wire(container).state, state);
    }
    assert_eq!(number("PodSandboxState", "SANDBOX_READY"), SANDBOX_READY);
    assert_eq!(number("CgroupDriver", "SYSTEMD"), crate::cri::convert::CGROUPS_BY_SYSTEMD);
    assert_eq!(number("CgroupDriver", "CGROUPFS"), crate::cri::convert::CGROUPS_BY_FILES);
}

#[test]
fn methods_have_the_paths_the_vectors_give_them() {
    let mut ran = 0;
    for case in vectors("cri-wire.json") {
        let Some(path) = case["expected"]["path"].as_str() else { continue };
        let method: &'static str = case["input"]["rpc"].as_str().unwrap().to_owned().leak();
        let call = if path.contains("ImageService") { Call::Image(method) } else { Call::Runtime(method) };
        assert_eq!(call.path(), path);
        ran += 1;
    }
    assert_eq!(ran, 14);
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
        pod: PodIdentity { namespace: "n".into(), name: "p".into(), uid: "u".into() },
        ..PullRequest::default()
    };
    let back = pull_from_wire(pull_to_wire(&request), &Handlers::Any).unwrap();
    assert_eq!(back.patience, imagelet_core::ports::Patience::ONE_RETRY, "a kubelet repeats its request");
    assert_eq!((back.image, back.credential), (request.image, request.credential));
    assert_eq!(back.pod, request.pod);
}

#[test]
fn all_that_is_said_of_a_pod_is_passed_on_as_it_came_and_is_not_printed() {
    let said = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata { name: "p".into(), uid: "u".into(), namespace: "n".into(), attempt: 7 }),
        annotations: [("note".to_owned(), "of the pod".to_owned())].into(),
    };
    // A field that is not read here: the host name.
    let said = [said.encode_to_vec(), b"\x12\x03web".to_vec()].concat();
    for config in [None, Some(Vec::new()), Some(said)] {
        let asked = v1::PullImageRequest { sandbox_config: config.clone(), ..v1::PullImageRequest::default() };
        let request = pull_from_wire(asked, &Handlers::Any).unwrap();
        assert!(!format!("{request:?}").contains("of the pod"));
        assert_eq!(pull_to_wire(&request).sandbox_config, config);
    }
    let odd = v1::PullImageRequest { sandbox_config: Some(vec![0x0a, 0x7f]), ..v1::PullImageRequest::default() };
    assert_eq!(pull_from_wire(odd, &Handlers::Any).unwrap_err().kind(), RuntimeErrorKind::InvalidArgument);
}

#[test]
fn both_filesystem_lists_are_filled_and_nothing_is_absent() {
    let usage = FilesystemUsage {
        measured_at: SystemTime::UNIX_EPOCH,
        mountpoint: "/var/lib/imagelet".into(),
        used: ByteSize(7),
        inodes_used: None,
    };
    let wire = filesystems_to_wire(&ImageFilesystems { images: vec![usage], ..ImageFilesystems::default() });
    assert_eq!(wire.image_filesystems, wire.container_filesystems);
    assert_eq!(wire.image_filesystems[0].timestamp, 1, "a timestamp is above zero");
    assert_eq!(wire.image_filesystems[0].inodes_used, Some(0));
    assert_eq!(wire.image_filesystems[0].used_bytes, Some(7));

    // CRI-O may keep writable layers on a disk of their own.
    let at = |mountpoint: &str| FilesystemUsage {
        measured_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1),
        mountpoint: mountpoint.into(),
        used: ByteSize(7),
        inodes_used: Some(1),
    };
    let both = ImageFilesystems {
        images: vec![at("/images")],
        containers: vec![at("/layers")],
        ..ImageFilesystems::default()
    };
    assert_eq!(filesystems_from_wire(filesystems_to_wire(&both)), both);

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
        state: 2,
        created_at: 5,
        ..v1::Container::default()
    });
    assert_eq!((read.id.as_str(), read.sandbox_id.as_str(), read.name.as_str()), ("c", "s", "web"));
    assert_eq!((read.image.spec.image.as_str(), read.image.spec.runtime_handler.as_str()), ("x", "kata"));
    assert_eq!(
        (read.image.reference.as_str(), read.image.id.as_str(), read.state),
        ("r", "sha256:i", ContainerState::Exited)
    );
}

#[test]
fn a_sandbox_is_ready_by_its_state_and_none_without_metadata() {
    let sandbox =
        |state, metadata| sandbox_from_wire(v1::PodSandbox { id: "s".into(), state, metadata, ..Default::default() });
    let metadata = || Some(v1::PodSandboxMetadata { name: "web".into(), ..Default::default() });
    let seen = |state| sandbox(state, metadata()).map(|sandbox| (sandbox.id, sandbox.name, sandbox.ready));
    assert_eq!(seen(0), Some(("s".into(), "web".into(), true)));
    assert_eq!(seen(1), Some(("s".into(), "web".into(), false)));
    assert!(sandbox(0, None).is_none());
}

#[test]
fn a_sandbox_that_is_not_told_apart_is_refused_by_what_is_known_of_it() {
    let metadata = v1::PodSandboxMetadata { name: "web".into(), namespace: "shop".into(), ..Default::default() };
    let status = v1::PodSandboxStatus { id: "s".into(), metadata: Some(metadata), created_at: 1 };
    let error = check_sandbox_status(&v1::PodSandboxStatusResponse { status: Some(status), ..Default::default() });
    assert_eq!(
        error.unwrap_err().to_string(),
        r#"metadata.Name, metadata.Namespace or metadata.Uid is not in metadata "name:web namespace:shop""#
    );
}

#[test]
fn image_volumes_tell_both_their_names_once() {
    let mount = |image: &str, image_ref: &str| v1::Mount {
        image: Some(v1::ImageSpec { image: image.into(), image_ref: image_ref.into(), ..v1::ImageSpec::default() }),
    };
    let mounts = vec![mount("b", "sha256:1"), v1::Mount { image: None }, mount("sha256:1", "b"), mount("", "")];
    assert_eq!(volumes_from_wire(v1::ContainerStatus { mounts, ..v1::ContainerStatus::default() }), ["b", "sha256:1"]);
}

#[test]
fn responses_are_checked_as_the_vectors_say() {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let cases = vectors("cri-response-checks.json");
    assert_eq!(cases.len(), 19);
    for case in cases {
        let status = &case["input"]["status"];
        let metadata = status.get("metadata");
        let result = match case["input"]["kind"].as_str().unwrap() {
            "VersionResponse" => check_version(&v1::VersionResponse {
                version: text(status, "version"),
                runtime_name: text(status, "runtime_name"),
                runtime_version: text(status, "runtime_version"),
                runtime_api_version: text(status, "runtime_api_version"),
            }),
            "StatusResponse" => {
                let conditions =
                    status["conditions"].as_array().unwrap().iter().map(|condition| v1::RuntimeCondition {
                        r#type: text(condition, "type"),
                        status: condition["status"] == true,
                        ..v1::RuntimeCondition::default()
                    });
                let status = Some(v1::RuntimeStatus { conditions: conditions.collect() });
                check_status(&v1::StatusResponse { status, ..v1::StatusResponse::default() })
            }
            "PodSandboxStatus" => check_sandbox_status(&v1::PodSandboxStatusResponse {
                status: Some(v1::PodSandboxStatus {
                    id: text(status, "id"),
                    metadata: metadata.map(|metadata| v1::PodSandboxMetadata {
                        name: text(metadata, "name"),
                        namespace: text(metadata, "namespace"),
                        uid: text(metadata, "uid"),
                        attempt: 0,
                    }),
                    created_at: status["created_at"].as_i64().unwrap_or(0),
                }),
                ..Default::default()
            }),
            "ContainerStatus" => check_container_status(&v1::ContainerStatus {
                id: text(status, "id"),
                metadata: metadata.map(|metadata| v1::ContainerMetadata {
                    name: text(metadata, "name"),
                    attempt: metadata["attempt"].as_u64().unwrap_or(0).try_into().unwrap(),
                }),
                created_at: status["created_at"].as_i64().unwrap_or(0),
                image: status
                    .get("image")
                    .map(|spec| v1::ImageSpec { image: text(spec, "image"), ..Default::default() }),
                image_ref: text(status, "image_ref"),
                ..v1::ContainerStatus::default()
            }),
            other => panic!("no such message: {other}"),
        };
        match case["expected"]["error_prefix"].as_str() {
            None => assert!(result.is_ok(), "{}", case["name"]),
            Some(prefix) => assert!(result.unwrap_err().to_string().starts_with(prefix), "{}", case["name"]),
        }
    }
}

#[test]
fn credentials_of_a_pull_read_as_the_vectors_say() {
    let cases = vectors("cri-parse-auth.json");
    assert_eq!(cases.len(), 9);
    for case in cases {
        let (auth, expected) = (&case["input"]["auth"], &case["expected"]);
        let field = |key: &str| auth[key].as_str().unwrap_or_default().to_owned();
        let auth = auth.is_object().then(|| v1::AuthConfig {
            username: field("username"),
            password: field("password"),
            auth: field("auth"),
            server_address: field("server_address"),
            identity_token: field("identity_token"),
            registry_token: field("registry_token"),
        });
        let host = case["input"]["host"].as_str().unwrap();
        let image = if host.is_empty() { "a".to_owned() } else { format!("{host}/a") };
        let spec = Some(v1::ImageSpec { image, ..v1::ImageSpec::default() });
        let read = pull_from_wire(v1::PullImageRequest { image: spec, auth, sandbox_config: None }, &Handlers::Any);
        assert_eq!(read.is_err(), expected["error"] == true, "{}", case["name"]);
        let (user, secret) = match read.ok().and_then(|request| request.credential).map(|credential| credential.kind) {
            None => (String::new(), String::new()),
            Some(CredentialKind::Basic { username, password }) => (username, password.expose().to_owned()),
            Some(CredentialKind::IdentityToken(token)) => (String::new(), token.expose().to_owned()),
            Some(CredentialKind::RegistryToken(token)) => panic!("no vector has {token:?}"),
        };
        let wanted = (expected["username"].as_str().unwrap(), expected["secret"].as_str().unwrap());
        assert_eq!((user.as_str(), secret.as_str()), wanted, "{}", case["name"]);
    }
}
