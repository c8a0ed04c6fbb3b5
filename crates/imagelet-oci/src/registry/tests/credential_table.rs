//! Every kind of secret on every way of a pull, with a mirror before the registry: each secret stays with its origin.
//!
//! Four servers record all that they receive: the registry, its mirror, a store that layers are redirected to, and a token
//! service. Registry and mirror each have a header, a client certificate and tokens of their own in every case.

use std::{path::Path, time::Duration};

use futures_util::{StreamExt as _, stream};
use imagelet_core::{
    credentials::{Credential, CredentialKind, Secret},
    error::RuntimeError,
    image::Platform,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::CertificateDer;

use super::{
    SHOWN,
    fake::{FakeRegistry, Guard, RecordedRequest, Trick},
};
use crate::registry::{Registry, RegistryConfig, RegistryTimeouts};

const CONCURRENT: usize = 4;
const LAYER: &[u8] = b"layer";
/// Tokens that the registry and the mirror accept, and the registry token of a credential.
const TOKENS: [&str; 3] = ["token-0", "token-1", "token-7"];
/// The secrets of a credential, as headers and forms have them.
const OF_CREDENTIAL: [&str; 5] = ["hunter2pass", "dXNlcjpodW50ZXIycGFzcw", "refresh/me", "refresh%2Fme", "token-7"];
const KEYS: [&str; 2] = ["key-of-registry", "key-of-mirror"];
const KEY_HEADER: &str = "x-key";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Registry,
    Mirror,
}

/// The server that the credential names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Nothing,
    Registry,
    Mirror,
    Elsewhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Password,
    IdentityToken,
    RegistryToken,
}

/// What registry and mirror require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    Nothing,
    Basic,
    OwnToken,
    TokenOfAnotherHost,
}

/// Where the layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Here,
    InTheStore,
    /// The store redirects back to the host that redirected to it.
    BackFromTheStore,
    /// Registry and mirror redirect to one another.
    AtTheOtherHost,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    encrypted: bool,
    mirror_serves: bool,
    named: Named,
    kind: Kind,
    demand: Demand,
    layer: Layer,
}

impl Case {
    fn all(encrypted: bool) -> Vec<Self> {
        let mut cases = Vec::new();
        for (kind, demand) in [
            (Kind::Password, Demand::Nothing),
            (Kind::Password, Demand::Basic),
            (Kind::Password, Demand::OwnToken),
            (Kind::Password, Demand::TokenOfAnotherHost),
            (Kind::IdentityToken, Demand::OwnToken),
            (Kind::IdentityToken, Demand::TokenOfAnotherHost),
            (Kind::RegistryToken, Demand::OwnToken),
        ] {
            for named in [Named::Nothing, Named::Registry, Named::Mirror, Named::Elsewhere] {
                for layer in [Layer::Here, Layer::InTheStore, Layer::BackFromTheStore, Layer::AtTheOtherHost] {
                    for mirror_serves in [true, false] {
                        cases.push(Self { encrypted, mirror_serves, named, kind, demand, layer });
                    }
                }
            }
        }
        cases
    }

    /// Whether the credential belongs to this side.
    fn is_for(self, side: Side) -> bool {
        match side {
            Side::Registry => matches!(self.named, Named::Nothing | Named::Registry),
            Side::Mirror => self.named == Named::Mirror,
        }
    }

    fn token_number(self, side: Side) -> u32 {
        match (self.kind, side) {
            (Kind::RegistryToken, _) => 7,
            (_, Side::Registry) => 0,
            (_, Side::Mirror) => 1,
        }
    }

    fn succeeds(self) -> bool {
        let is_served = self.is_for(Side::Registry) || (self.is_for(Side::Mirror) && self.mirror_serves);
        // A plain token service on another origin gets no credential.
        let is_granted = self.demand != Demand::TokenOfAnotherHost || self.encrypted;
        let is_private_elsewhere = matches!(self.layer, Layer::BackFromTheStore | Layer::AtTheOtherHost);
        self.demand == Demand::Nothing || (is_served && is_granted && !is_private_elsewhere)
    }

    fn credential(self, servers: &Servers) -> Credential {
        let kind = match self.kind {
            Kind::Password => {
                CredentialKind::Basic { username: "user".to_owned(), password: Secret::new("hunter2pass") }
            }
            Kind::IdentityToken => CredentialKind::IdentityToken(Secret::new("refresh/me")),
            Kind::RegistryToken => CredentialKind::RegistryToken(Secret::new("token-7")),
        };
        let server_address = match self.named {
            Named::Nothing => String::new(),
            Named::Registry => servers.registry.address.to_string(),
            Named::Mirror => servers.mirror.address.to_string(),
            Named::Elsewhere => servers.store.address.to_string(),
        };
        Credential { kind, server_address }
    }
}

/// Client certificates of registry and mirror, by one authority that all servers accept.
struct Identities {
    authority: CertificateDer<'static>,
    /// Certificate and key in PEM.
    pems: [(String, String); 2],
    certificates: [CertificateDer<'static>; 2],
}

impl Identities {
    fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::<String>::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = parameters.self_signed(&key).unwrap().der().clone();
        let issuer = Issuer::new(parameters, key);
        let made = ["registry", "mirror"].map(|name| {
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
            ((certificate.pem(), key.serialize_pem()), certificate.der().clone())
        });
        let [(registry, registry_der), (mirror, mirror_der)] = made;
        Self { authority, pems: [registry, mirror], certificates: [registry_der, mirror_der] }
    }
}

struct Servers {
    registry: FakeRegistry,
    mirror: FakeRegistry,
    store: FakeRegistry,
    tokens: FakeRegistry,
    /// The authorities of all, in PEM.
    authorities: String,
    scheme: &'static str,
}

impl Servers {
    async fn start(case: Case, identities: &Identities) -> Self {
        let mut authorities = String::new();
        let mut start = async || {
            if !case.encrypted {
                return FakeRegistry::start().await;
            }
            let (server, authority) = FakeRegistry::start_asking_for(Some(identities.authority.clone())).await;
            authorities += &authority;
            server
        };
        let (registry, mirror, store, tokens) = (start().await, start().await, start().await, start().await);
        let scheme = if case.encrypted { "https" } else { "http" };
        let servers = Self { registry, mirror, store, tokens, authorities, scheme };
        servers.prepare(case);
        servers
    }

    fn side(&self, side: Side) -> &FakeRegistry {
        if side == Side::Registry { &self.registry } else { &self.mirror }
    }

    fn url(&self, server: &FakeRegistry) -> String {
        format!("{}://{}", self.scheme, server.address)
    }

    fn prepare(&self, case: Case) {
        let (shown, form) = match case.kind {
            Kind::Password => (Some(SHOWN.to_owned()), None),
            Kind::IdentityToken => (None, Some("refresh_token=refresh%2Fme".to_owned())),
            Kind::RegistryToken => (Some("nothing is accepted".to_owned()), None),
        };
        let bearer = |realm: String| Guard::Bearer { shown: shown.clone(), form: form.clone(), realm: Some(realm) };
        let digest = self.store.put_blob(LAYER);
        for (side, other, name) in
            [(Side::Registry, Side::Mirror, "registry"), (Side::Mirror, Side::Registry, "mirror")]
        {
            let server = self.side(side);
            server.put_image("v1", &[LAYER]);
            (0..case.token_number(side)).for_each(|_| server.expire_tokens());
            server.guard(match case.demand {
                Demand::Nothing => Guard::Open,
                Demand::Basic => Guard::Basic("user", "hunter2pass"),
                Demand::OwnToken => bearer(format!("{}/token", self.url(server))),
                Demand::TokenOfAnotherHost => bearer(format!("{}/token?for={name}", self.url(&self.tokens))),
            });
            let back = |to: &FakeRegistry| format!("{}/v2/team/app/blobs/back/{digest}", self.url(to));
            let target = match case.layer {
                Layer::Here => continue,
                Layer::InTheStore | Layer::BackFromTheStore => format!("{}/{name}/{digest}", self.url(&self.store)),
                Layer::AtTheOtherHost => back(self.side(other)),
            };
            server.trick(format!("app/blobs/{digest}"), 9, redirect(target));
            if case.layer == Layer::BackFromTheStore {
                self.store.trick(format!("/{name}/{digest}"), 9, redirect(back(server)));
            }
        }
        if !case.mirror_serves {
            self.mirror.trick("/v1", 9, Trick::Answer(404, vec![], "".into()));
        }
        self.tokens.guard(bearer(String::new()));
        let served_by = if case.is_for(Side::Mirror) { Side::Mirror } else { Side::Registry };
        (0..case.token_number(served_by)).for_each(|_| self.tokens.expire_tokens());
    }

    /// `hosts.toml` of the registry, and the files that it names.
    fn configure(&self, root: &Path, identities: &Identities) {
        let folder = root.join(self.registry.address.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("ca.pem"), &self.authorities).unwrap();
        for (name, (certificate, key)) in ["registry", "mirror"].iter().zip(&identities.pems) {
            std::fs::write(folder.join(format!("{name}.pem")), certificate).unwrap();
            std::fs::write(folder.join(format!("{name}.key")), key).unwrap();
        }
        let tls = |name: &str| {
            let text = format!("ca = \"ca.pem\"\nclient = [[\"{name}.pem\", \"{name}.key\"]]\n");
            if self.authorities.is_empty() { String::new() } else { text }
        };
        let (server, mirror) = (self.url(&self.registry), self.url(&self.mirror));
        let (own_tls, mirror_tls) = (tls("registry"), tls("mirror"));
        let [own_key, mirror_key] = KEYS;
        let text = format!(
            "server = \"{server}\"\n{own_tls}[header]\n{KEY_HEADER} = \"{own_key}\"\n\
             [host.\"{mirror}\"]\n{mirror_tls}[host.\"{mirror}\".header]\n{KEY_HEADER} = \"{mirror_key}\"\n"
        );
        std::fs::write(folder.join("hosts.toml"), text).unwrap();
    }
}

fn redirect(to: String) -> Trick {
    Trick::Answer(307, vec![("location", to)], "".into())
}

async fn pull(servers: &Servers, case: Case, root: &Path) -> Result<Vec<u8>, RuntimeError> {
    let config = RegistryConfig {
        hosts_dirs: vec![root.to_owned()],
        timeouts: RegistryTimeouts {
            header: Duration::from_secs(20),
            retry_budget: Duration::ZERO,
            ..RegistryTimeouts::default()
        },
        ..RegistryConfig::default()
    };
    let platform: Platform = "linux/amd64".parse().unwrap();
    let reference = servers.registry.reference("team/app:v1");
    let credential = case.credential(servers);
    let resolved = Registry::new(config).resolve(&reference, Some(&credential), &platform).await?;
    let mut stream = resolved.session.open_blob(&resolved.manifest.layers[0], 0).await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Which secrets a request carries, wherever it carries them.
fn secrets_in(request: &RecordedRequest) -> Vec<String> {
    let mut parts: Vec<String> = vec![format!("{}?{}", request.path, request.query), request.body.clone()];
    parts.extend(request.headers.values().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()));
    let known = OF_CREDENTIAL.iter().chain(&TOKENS).chain(&KEYS);
    let mut found: Vec<String> =
        known.filter(|secret| parts.iter().any(|part| part.contains(*secret))).map(ToString::to_string).collect();
    found.extend(request.headers.get("cookie").map(|_| "a cookie".to_owned()));
    found
}

/// What is wrong in one case.
async fn check(case: Case, identities: &Identities) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let servers = Servers::start(case, identities).await;
    servers.configure(folder.path(), identities);
    let mut wrong = Vec::new();
    match pull(&servers, case, folder.path()).await {
        Ok(bytes) if bytes != LAYER => wrong.push("other bytes".to_owned()),
        Ok(_) if !case.succeeds() => wrong.push("the pull succeeds".to_owned()),
        Err(error) if case.succeeds() => wrong.push(format!("the pull fails: {}", error.chain())),
        Err(error) if OF_CREDENTIAL.iter().chain(&KEYS).any(|secret| error.chain().contains(secret)) => {
            wrong.push(format!("a secret in the error: {}", error.chain()));
        }
        _ => {}
    }
    let is_of_credential = |secret: &str| OF_CREDENTIAL.contains(&secret);
    for (at, side) in [Side::Registry, Side::Mirror].into_iter().enumerate() {
        let (server, own_token) = (servers.side(side), format!("token-{}", case.token_number(side)));
        let seen = server.seen();
        for secret in seen.iter().flat_map(secrets_in) {
            let may =
                if is_of_credential(&secret) { case.is_for(side) } else { secret == KEYS[at] || secret == own_token };
            if !may {
                wrong.push(format!("{side:?} is shown `{secret}`"));
            }
        }
        let certificates = server.certificates();
        if certificates.iter().any(|shown| *shown != identities.certificates[at]) {
            wrong.push(format!("{side:?} is shown another certificate"));
        }
        // What is its own arrives where the pull itself leads, or the table proves nothing.
        let direct: Vec<_> = seen.iter().filter(|request| !request.path.contains("/back/")).collect();
        let has_key = direct.iter().all(|request| {
            request.path == "/token" || request.headers.get(KEY_HEADER).is_some_and(|key| key == KEYS[at])
        });
        if !direct.is_empty() && (!has_key || (case.encrypted && certificates.is_empty())) {
            wrong.push(format!("{side:?} lacks its own header or certificate"));
        }
    }
    for request in servers.tokens.seen() {
        let challenger = if request.query.contains("for=mirror") { Side::Mirror } else { Side::Registry };
        let may = |secret: &str| is_of_credential(secret) && case.is_for(challenger) && case.encrypted;
        let leaked = secrets_in(&request).into_iter().filter(|secret| !may(secret));
        wrong.extend(leaked.map(|secret| format!("the token service of {challenger:?} is shown `{secret}`")));
    }
    let leaked = servers.store.seen().iter().flat_map(secrets_in).collect::<Vec<_>>();
    wrong.extend(leaked.iter().map(|secret| format!("the store is shown `{secret}`")));
    if !servers.store.certificates().is_empty() || !servers.tokens.certificates().is_empty() {
        wrong.push("a certificate is shown to another origin".to_owned());
    }
    wrong
}

async fn check_all(cases: Vec<Case>) {
    let identities = Identities::new();
    let count = cases.len();
    let outcomes = stream::iter(cases)
        .map(|case| {
            let identities = &identities;
            async move { (case, check(case, identities).await) }
        })
        .buffer_unordered(CONCURRENT)
        .collect::<Vec<_>>()
        .await;
    assert_eq!(outcomes.len(), count);
    assert!(outcomes.iter().any(|(case, _)| case.succeeds()) && outcomes.iter().any(|(case, _)| !case.succeeds()));
    let mut wrong: Vec<String> = outcomes
        .into_iter()
        .flat_map(|(case, wrong)| wrong.into_iter().map(move |what| format!("{case:?}: {what}")))
        .collect();
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "{} of {count} cases and more:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn over_tls_each_origin_sees_its_own_credential_header_certificate_and_token_and_no_other() {
    check_all(Case::all(true)).await;
}

#[tokio::test]
async fn over_plain_http_each_origin_sees_its_own_credential_header_and_token_and_no_other() {
    check_all(Case::all(false)).await;
}
