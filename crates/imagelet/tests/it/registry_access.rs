//! Pulls from Debian's `docker-registry` as sites run it: behind a private authority, client certificates, a token server.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::SystemTime,
};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::{
    images::Image,
    program::{Daemon, Outcome},
    testbed::{Registry, scratch},
};

const USER: &str = "puller";
const PASSWORD: &str = "correct horse";
const SERVICE: &str = "registry.example.com";
const ISSUER: &str = "tokens.example.com";

/// A registry with an image, and a node that knows its hosts by `certs.d`.
struct Site {
    folder: tempfile::TempDir,
    registry: Registry,
}

impl Site {
    fn new() -> Self {
        let (folder, registry) = (scratch(), Registry::start());
        registry.push("team/app:v1", &Image::marked("app", 3000));
        Self { folder, registry }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Pulls from a registry, with these lines in its `hosts.toml`.
    fn pull(&self, address: &str, scheme: &str, hosts: &str, options: &[&str]) -> Outcome {
        let certs = self.path("certs.d").join(address);
        fs::create_dir_all(&certs).unwrap();
        fs::write(certs.join("hosts.toml"), format!("server = \"{scheme}://{address}\"\n{hosts}")).unwrap();
        let config = format!("registry: {{configPath: {}}}\n", self.path("certs.d").display());
        let config = self.write("config.yaml", &config);
        // A store of its own: nothing is present.
        let node = tempfile::tempdir_in(self.folder.path()).unwrap();
        let store = node.path().join("store");
        let daemon = Daemon::start(node.path(), ["--store", store.to_str().unwrap(), "--config", &config]);
        let reference = format!("{address}/team/app:v1");
        daemon.run(["pull", "-q"].iter().chain(options).chain([&reference.as_str()]))
    }
}

/// An authority of the site.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(parameters, key), pem }
    }

    /// A certificate and its key, in PEM.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new([name.to_owned()]).unwrap();
        (parameters.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

#[test]
fn a_private_authority_is_believed_where_hosts_toml_names_it() {
    let (site, authority) = (Site::new(), Authority::new("the site's authority"));
    let (certificate, key) = authority.sign("127.0.0.1");
    let (certificate, key) = (site.write("server.pem", &certificate), site.write("server.key", &key));
    let front = site.registry.front("tls", &format!(", tls: {{certificate: {certificate}, key: {key}}}"), "");
    site.write("other.pem", &Authority::new("another").pem);
    let own = format!("ca = \"{}\"\n", site.write("ca.pem", &authority.pem));
    let other = format!("ca = \"{}\"\n", site.path("other.pem").display());
    site.pull(&front.address(), "https", &own, &[]).ok();
    site.pull(&front.address(), "https", "skip_verify = true\n", &[]).ok();
    for hosts in ["", &other] {
        site.pull(&front.address(), "https", hosts, &[]).refused(&["signed by an unknown authority", &front.address()]);
    }
}

#[test]
fn a_client_certificate_is_shown_where_hosts_toml_names_it() {
    let (site, authority) = (Site::new(), Authority::new("the site's authority"));
    let write = |name: &str, (certificate, key): (String, String)| {
        (site.write(&format!("{name}.pem"), &certificate), site.write(&format!("{name}.key"), &key))
    };
    let (certificate, key) = write("server", authority.sign("127.0.0.1"));
    let ca = site.write("ca.pem", &authority.pem);
    let tls = format!(", tls: {{certificate: {certificate}, key: {key}, clientcas: [{ca}]}}");
    let front = site.registry.front("mutual", &tls, "");
    let client =
        |(certificate, key): (String, String)| format!("ca = \"{ca}\"\nclient = [[\"{certificate}\", \"{key}\"]]\n");
    site.pull(&front.address(), "https", &client(write("node", authority.sign("node.example.com"))), &[]).ok();
    site.pull(&front.address(), "https", &format!("ca = \"{ca}\"\n"), &[])
        .refused(&["client certificate", &front.address()]);
    let stranger = write("stranger", Authority::new("another").sign("node.example.com"));
    site.pull(&front.address(), "https", &client(stranger), &[]).refused(&["client certificate", &front.address()]);
}

/// A token server of the Docker Registry's kind: it gives out signed tokens for a login. It stands before the registry, at
/// one address: a credential goes to no other.
struct TokenServer {
    address: String,
    registry: Arc<OnceLock<String>>,
    bundle: String,
    /// Scopes asked for, with a right login.
    granted: Arc<Mutex<Vec<String>>>,
}

impl TokenServer {
    fn start() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new([ISSUER.to_owned()]).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = parameters.self_signed(&key).unwrap();
        let signing = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.serialize_der()).unwrap();
        let head = json!({"typ": "JWT", "alg": "ES256", "x5c": [STANDARD.encode(certificate.der())]});
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let granted: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&granted);
        let registry: Arc<OnceLock<String>> = Arc::default();
        let behind = Arc::clone(&registry);
        thread::spawn(move || {
            for stream in listener.incoming() {
                // A client may leave before its answer.
                let _ = answer(stream.unwrap(), &behind, &|scope| token(&head, &signing, scope), &seen);
            }
        });
        Self { address, registry, bundle: certificate.pem(), granted }
    }

    fn scopes(&self) -> Vec<String> {
        std::mem::take(&mut self.granted.lock().unwrap())
    }
}

fn answer(
    mut stream: TcpStream,
    registry: &OnceLock<String>,
    token: &dyn Fn(&str) -> String,
    granted: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let lines = BufReader::new(stream.try_clone()?).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let Some(line) = head.first().filter(|line| line.contains(" /token")) else {
        // One request a connection; none of them has a body.
        let mut behind = TcpStream::connect(registry.get().expect("the registry runs"))?;
        behind.write_all(format!("{}\r\nConnection: close\r\n\r\n", head.join("\r\n")).as_bytes())?;
        return std::io::copy(&mut behind, &mut stream).map(drop);
    };
    let headers = head.iter().filter_map(|line| line.split_once(": "));
    let login = headers.filter(|(name, _)| name.eq_ignore_ascii_case("authorization")).map(|(_, value)| value).next();
    let scope = line.split(['?', '&', ' ']).find_map(|pair| pair.strip_prefix("scope=")).unwrap_or_default();
    let scope = scope.replace("%3A", ":").replace("%2F", "/");
    let (status, body) = if login == Some(&format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")))) {
        granted.lock().unwrap().push(scope.clone());
        ("200 OK", json!({"token": token(&scope), "expires_in": 300}).to_string())
    } else {
        ("401 Unauthorized", json!({"errors": [{"code": "UNAUTHORIZED", "message": "no such user"}]}).to_string())
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn token(head: &Value, key: &EcdsaKeyPair, scope: &str) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let name = scope.split(':').nth(1).unwrap_or_default();
    let claims = json!({
        "iss": ISSUER, "sub": USER, "aud": SERVICE, "jti": "1", "iat": now, "nbf": now - 60, "exp": now + 300,
        "access": [{"type": "repository", "name": name, "actions": ["pull"]}],
    });
    let signed = [head, &claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
}

#[test]
fn a_token_server_gives_a_token_for_the_repository_to_who_has_the_login() {
    let (site, tokens) = (Site::new(), TokenServer::start());
    let bundle = site.write("bundle.pem", &tokens.bundle);
    let auth = format!(
        "auth: {{token: {{realm: \"http://{}/token\", service: {SERVICE}, issuer: {ISSUER}, rootcertbundle: {bundle}}}}}\n",
        tokens.address
    );
    let front = site.registry.front("tokens", "", &auth);
    tokens.registry.set(front.address()).unwrap();
    site.pull(&tokens.address, "http", "", &["--creds", &format!("{USER}:{PASSWORD}")]).ok();
    assert_eq!(tokens.scopes(), ["repository:team/app:pull"], "one token serves the whole pull");
    let wrong = site.pull(&tokens.address, "http", "", &["--creds", &format!("{USER}:wrong")]).refused(&["credential"]);
    assert!(!wrong.contains("wrong"), "{wrong}");
    site.pull(&tokens.address, "http", "", &[]).refused(&["without a credential"]);
    assert_eq!(tokens.scopes(), [""; 0]);
}
