//! Layers, images and a registry that serves them, also wrongly.

use std::{
    collections::HashMap,
    io::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use imagelet_core::image::Digest;

/// A layer in the making, then its bytes and what is said of them.
#[derive(Clone)]
pub(crate) struct Layer {
    tar: Vec<u8>,
    blob: Vec<u8>,
    served: Option<Vec<u8>>,
    media_type: String,
    diff_id: Option<Digest>,
    stall: Option<usize>,
    claim: Option<usize>,
}

const PLAIN: &str = "application/vnd.oci.image.layer.v1.tar";

impl Layer {
    pub(crate) fn new() -> Self {
        Self {
            tar: Vec::new(),
            blob: Vec::new(),
            served: None,
            media_type: PLAIN.into(),
            diff_id: None,
            stall: None,
            claim: None,
        }
    }

    pub(crate) fn file(self, path: &str, bytes: &[u8]) -> Self {
        self.raw(path, bytes)
    }

    /// A regular file under whatever name, also one that the usual builders refuse to write.
    pub(crate) fn raw(mut self, path: &str, bytes: &[u8]) -> Self {
        self.header(path, "", b'0', bytes.len());
        self.tar.extend_from_slice(bytes);
        self.tar.resize(self.tar.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn link(mut self, path: &str, target: &str) -> Self {
        self.header(path, target, b'2', 0);
        self
    }

    pub(crate) fn hard_link(mut self, path: &str, target: &str) -> Self {
        self.header(path, target, b'1', 0);
        self
    }

    /// An entry of whatever kind, without data.
    pub(crate) fn special(mut self, path: &str, kind: u8) -> Self {
        self.header(path, "", kind, 0);
        self
    }

    fn header(&mut self, path: &str, link: &str, kind: u8, size: usize) {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, path.as_bytes());
        put(100, b"0000644\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{size:011o}\0").as_bytes());
        put(136, b"14000000000\0");
        put(148, b"        ");
        put(156, &[kind]);
        put(157, link.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.tar.extend_from_slice(&header);
    }

    fn ended(mut self) -> Self {
        self.tar.extend([0; 1024]);
        self
    }

    pub(crate) fn plain(self) -> Self {
        let ended = self.ended();
        Self { blob: ended.tar.clone(), ..ended }
    }

    pub(crate) fn gzip(self) -> Self {
        let ended = self.ended();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&ended.tar).expect("memory takes all");
        Self { blob: encoder.finish().expect("memory takes all"), media_type: format!("{PLAIN}+gzip"), ..ended }
    }

    /// Two members, as of builders that compress in parts; the second one begins in a block of the archive.
    pub(crate) fn gzip_in_two(self, at: usize) -> Self {
        let ended = self.gzip();
        let member = |bytes: &[u8]| {
            // The fastest encoder makes one block of all.
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(bytes).expect("memory takes all");
            encoder.finish().expect("memory takes all")
        };
        let (head, tail) = ended.tar.split_at(at);
        Self { blob: [member(head), member(tail)].concat(), ..ended }
    }

    pub(crate) fn zstd(self) -> Self {
        let ended = self.ended();
        let blob = zstd::encode_all(&ended.tar[..], 3).expect("it compresses");
        Self { blob, media_type: format!("{PLAIN}+zstd"), ..ended }
    }

    /// A frame that does not state its size, so that its window is taken for as large as `2^log` bytes.
    pub(crate) fn zstd_with_window(self, log: u32) -> Self {
        let ended = self.ended();
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
        encoder.window_log(log).expect("a window");
        encoder.write_all(&ended.tar).expect("memory takes all");
        Self { blob: encoder.finish().expect("memory takes all"), media_type: format!("{PLAIN}+zstd"), ..ended }
    }

    pub(crate) fn tar(&self) -> &[u8] {
        &self.tar
    }

    pub(crate) fn diff_id(&self) -> Digest {
        self.diff_id.clone().unwrap_or_else(|| Digest::of(&self.tar))
    }

    /// Its bytes as they shall arrive.
    pub(crate) fn blob(&self) -> &[u8] {
        &self.blob
    }

    pub(crate) fn serving(mut self, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = self.blob.clone();
        change(&mut bytes);
        self.served = Some(bytes);
        self
    }

    pub(crate) fn typed(self, media_type: &str) -> Self {
        Self { media_type: media_type.into(), ..self }
    }

    pub(crate) fn with_diff_id_of(self, bytes: &[u8]) -> Self {
        Self { diff_id: Some(Digest::of(bytes)), ..self }
    }

    pub(crate) fn stalling_at(self, bytes: usize) -> Self {
        Self { stall: Some(bytes), ..self }
    }

    /// Described with another size, of which no byte comes.
    pub(crate) fn claiming(self, bytes: usize) -> Self {
        Self { claim: Some(bytes), stall: Some(0), ..self }
    }
}

/// Media type, bytes, and where sending stops for good.
type Served = (String, Bytes, Option<usize>);

#[derive(Default)]
struct Content {
    /// By path below `/v2/`.
    files: Mutex<HashMap<String, Served>>,
    layer_requests: AtomicUsize,
    /// `METHOD path` of each request.
    paths: Mutex<Vec<String>>,
    /// The range of each request for a layer.
    ranges: Mutex<Vec<Option<String>>>,
    /// Layers come by so many bytes a tenth of a second; 0: at once.
    trickle: AtomicUsize,
    /// Their first bytes, which come at once.
    burst: AtomicUsize,
    /// Manifests come without `Docker-Content-Digest`.
    hides_digests: AtomicBool,
    /// The answer to each `HEAD`; 0: as to a `GET`.
    head_status: AtomicU16,
}

/// A registry on loopback.
pub(crate) struct TestRegistry {
    port: u16,
    content: Arc<Content>,
}

impl TestRegistry {
    pub(crate) async fn start() -> Self {
        let content = Arc::new(Content::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let router = Router::new().route("/v2/{*path}", axum::routing::get(serve)).with_state(Arc::clone(&content));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, content }
    }

    pub(crate) fn name(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    pub(crate) fn take_layer_requests(&self) -> usize {
        self.content.layer_requests.swap(0, Ordering::SeqCst)
    }

    /// `METHOD path` of each request since the last call.
    pub(crate) fn take_paths(&self) -> Vec<String> {
        std::mem::take(&mut *self.content.paths.lock().expect("no panic"))
    }

    /// From now on layers come by so many bytes a second after the first ones, or (0) at once.
    pub(crate) fn trickle(&self, bytes_per_second: usize, burst: usize) {
        self.content.burst.store(burst, Ordering::SeqCst);
        self.content.trickle.store(bytes_per_second.div_ceil(10), Ordering::SeqCst);
    }

    /// How `HEAD` is answered from now on: by a status (0: as a `GET`), and without a digest.
    pub(crate) fn answer_head(&self, status: u16, hides_digests: bool) {
        self.content.head_status.store(status, Ordering::SeqCst);
        self.content.hides_digests.store(hides_digests, Ordering::SeqCst);
    }

    /// How many manifests were asked for since the last call.
    pub(crate) fn take_manifest_requests(&self) -> usize {
        let paths = self.take_paths();
        paths.iter().filter(|path| path.contains("/manifests/")).count()
    }

    /// The ranges that layers were asked for since the last call.
    pub(crate) fn take_ranges(&self) -> Vec<Option<String>> {
        std::mem::take(&mut self.content.ranges.lock().expect("no panic"))
    }

    pub(crate) fn image(&self, name: &str, tag: &str, layers: &[Layer]) {
        let diff_ids: Vec<String> = layers
            .iter()
            .map(|layer| layer.diff_id.clone().unwrap_or_else(|| Digest::of(&layer.tar)).to_string())
            .collect();
        let config = serde_json::to_vec(&serde_json::json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }))
        .expect("JSON");
        let mut described = Vec::new();
        for layer in layers {
            let digest = Digest::of(&layer.blob);
            described.push(serde_json::json!({
                "mediaType": layer.media_type, "digest": digest.as_str(), "size": layer.claim.unwrap_or(layer.blob.len()),
            }));
            let bytes = layer.claim.map(|size| vec![0; size]).or_else(|| layer.served.clone());
            let bytes = bytes.unwrap_or_else(|| layer.blob.clone());
            self.put(&format!("{name}/blobs/{digest}"), "layer", bytes, layer.stall);
        }
        let config_digest = Digest::of(&config);
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = serde_json::to_vec(&serde_json::json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": config_digest.as_str(),
                "size": config.len(),
            },
            "layers": described,
        }))
        .expect("JSON");
        self.put(&format!("{name}/blobs/{config_digest}"), "config", config, None);
        self.put(&format!("{name}/manifests/{}", Digest::of(&manifest)), media_type, manifest.clone(), None);
        self.put(&format!("{name}/manifests/{tag}"), media_type, manifest, None);
    }

    /// Serves an artifact of these files, by title; returns the digest of its manifest.
    pub(crate) fn artifact(&self, name: &str, tag: &str, files: &[(&str, &[u8])]) -> String {
        self.artifact_typed(name, tag, "application/vnd.example.part", files)
    }

    /// The same with files of a media type.
    pub(crate) fn artifact_typed(&self, name: &str, tag: &str, media_type: &str, files: &[(&str, &[u8])]) -> String {
        let layer = |(title, bytes): &(&str, &[u8])| {
            let annotations = serde_json::json!({"org.opencontainers.image.title": title});
            (serde_json::json!({"mediaType": media_type, "annotations": annotations}), bytes.to_vec())
        };
        self.artifact_of(name, tag, files.iter().map(layer).collect())
    }

    /// The same with blobs by their descriptors, whose digest and size follow.
    pub(crate) fn artifact_of(&self, name: &str, tag: &str, blobs: Vec<(serde_json::Value, Vec<u8>)>) -> String {
        let layer = |(mut described, bytes): (serde_json::Value, Vec<u8>)| {
            let digest = Digest::of(&bytes);
            described["digest"] = serde_json::json!(digest);
            described["size"] = serde_json::json!(bytes.len());
            self.put(&format!("{name}/blobs/{digest}"), "layer", bytes, None);
            described
        };
        let layers: Vec<_> = blobs.into_iter().map(layer).collect();
        let (empty, media_type) = (Digest::of(b"{}"), "application/vnd.oci.image.manifest.v1+json");
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": media_type, "artifactType": "application/vnd.example.model",
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": empty.as_str(), "size": 2},
            "layers": layers,
        });
        let (manifest, digest) = (manifest.to_string().into_bytes(), Digest::of(manifest.to_string().as_bytes()));
        self.put(&format!("{name}/blobs/{empty}"), "config", b"{}".to_vec(), None);
        self.put(&format!("{name}/manifests/{digest}"), media_type, manifest.clone(), None);
        self.put(&format!("{name}/manifests/{tag}"), media_type, manifest, None);
        digest.to_string()
    }

    /// What is served at a path below `/v2/`.
    pub(crate) fn file(&self, path: &str) -> Vec<u8> {
        self.content.files.lock().expect("no panic").get(path).expect("it is served").1.to_vec()
    }

    /// Serves nothing at a path any more.
    pub(crate) fn forget(&self, path: &str) {
        self.content.files.lock().expect("no panic").remove(path);
    }

    pub(crate) fn put(&self, path: &str, media_type: &str, bytes: Vec<u8>, stall: Option<usize>) {
        self.content.files.lock().expect("no panic").insert(path.into(), (media_type.into(), bytes.into(), stall));
    }
}

async fn serve(
    State(content): State<Arc<Content>>,
    Path(path): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    content.paths.lock().expect("no panic").push(format!("{method} {path}"));
    let head_status = content.head_status.load(Ordering::SeqCst);
    if method == Method::HEAD && head_status != 0 {
        return StatusCode::from_u16(head_status).expect("a status").into_response();
    }
    let found = content.files.lock().expect("no panic").get(&path).cloned();
    let Some((media_type, bytes, stall)) = found else {
        return (StatusCode::NOT_FOUND, r#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#).into_response();
    };
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let is_layer = media_type == "layer";
    if is_layer {
        content.layer_requests.fetch_add(1, Ordering::SeqCst);
        content.ranges.lock().expect("no panic").push(range.map(str::to_owned));
    }
    let media_type = if path.contains("/blobs/") { "application/octet-stream".to_owned() } else { media_type };
    let last = bytes.len().saturating_sub(1);
    let asked = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')).map(|(first, end)| {
        (first.parse().expect("a number"), if end.is_empty() { last } else { end.parse().expect("a number") })
    });
    let (first, last): (usize, usize) = asked.unwrap_or((0, last));
    let mut head = HeaderMap::new();
    let mut tell = |name, value: String| head.insert(name, value.parse().expect("a header"));
    tell(header::CONTENT_TYPE, media_type);
    tell(header::CONTENT_LENGTH, (last + 1 - first).min(bytes.len()).to_string());
    if path.contains("/manifests/") && !content.hides_digests.load(Ordering::SeqCst) {
        tell(header::HeaderName::from_static("docker-content-digest"), Digest::of(&bytes).to_string());
    }
    if asked.is_some() {
        tell(header::CONTENT_RANGE, format!("bytes {first}-{last}/{}", bytes.len()));
    }
    let status = if asked.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let end = bytes.len().min(last + 1);
    let part = |end: usize| bytes.slice(first..end);
    let body = match stall.filter(|at| *at < end) {
        Some(at) => Body::from_stream(futures_util::StreamExt::chain(
            futures_util::stream::iter([Ok::<_, std::io::Error>(part(at.max(first)))]),
            futures_util::stream::pending(),
        )),
        None if content.trickle.load(Ordering::SeqCst) > 0 && is_layer => {
            let burst = content.burst.load(Ordering::SeqCst).saturating_sub(first);
            trickling(part(end), burst, Arc::clone(&content))
        }
        None => Body::from(part(end)),
    };
    (status, head, body).into_response()
}

/// The first bytes at once, a few ten times a second while the registry trickles, and then the rest.
fn trickling(bytes: Bytes, burst: usize, content: Arc<Content>) -> Body {
    Body::from_stream(futures_util::stream::unfold((bytes, burst, content), |(mut left, burst, content)| async move {
        if left.is_empty() {
            return None;
        }
        if burst > 0 {
            let piece = left.split_to(left.len().min(burst));
            return Some((Ok::<_, std::io::Error>(piece), (left, 0, content)));
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let piece = match content.trickle.load(Ordering::SeqCst) {
            0 => std::mem::take(&mut left),
            bytes => left.split_to(left.len().min(bytes)),
        };
        Some((Ok(piece), (left, 0, content)))
    }))
}
