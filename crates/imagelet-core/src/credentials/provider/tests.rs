//! Providers from the outside: real scripts, a scripted cluster.

mod planted;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use imagelet_vectors::vectors;
use serde_json::{Value, json};

use super::*;
use crate::credentials::{
    CredentialKind, CredentialSource, IssuedToken, Secret, ServiceAccount, Standalone, TokenRequest,
};
use crate::text::PlainError;

const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

#[derive(Debug, Default)]
struct Cluster {
    asked: Mutex<Vec<TokenRequest>>,
    /// Appended to each token, so that every token can differ.
    renewed: AtomicUsize,
    renews: bool,
}

#[async_trait]
impl TokenSource for Cluster {
    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, PlainError> {
        assert_eq!(namespace, "ns");
        let annotations: &[(&str, &str)] = match name {
            "mysa" | "notoken" => &[("d.io/id", "1"), ("d.io/opt", "2"), ("other", "x")],
            "noann" => &[],
            _ => return Err(PlainError::new("sa not found")),
        };
        let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Ok(ServiceAccount { uid: format!("uid-{name}"), annotations: annotations.collect() })
    }

    async fn token(&self, request: &TokenRequest) -> Result<IssuedToken, PlainError> {
        self.asked.lock().unwrap().push(request.clone());
        if request.service_account == "notoken" {
            return Err(PlainError::new("token boom"));
        }
        let mut token = format!("tok-{}", request.service_account);
        if self.renews {
            token.push_str(&self.renewed.fetch_add(1, Ordering::Relaxed).to_string());
        }
        let now = SystemTime::now();
        Ok(IssuedToken { token: Secret::new(token), issued: now, expires: now + Duration::from_hours(1) })
    }
}

struct Bed {
    folder: tempfile::TempDir,
    metrics: Arc<Metrics>,
    cluster: Arc<Cluster>,
    providers: Arc<Providers>,
    limit: Duration,
}

impl Bed {
    fn new() -> Self {
        Self::with_cluster(Cluster::default())
    }

    fn with_cluster(cluster: Cluster) -> Self {
        let (metrics, cluster) = (Arc::new(Metrics::new()), Arc::new(cluster));
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        let providers = Providers::new(Arc::clone(&cluster) as Arc<dyn TokenSource>, Arc::clone(&metrics));
        Self { folder, metrics, cluster, providers: Arc::new(providers), limit: Duration::from_secs(20) }
    }

    /// A script that records its input, arguments and environment, and then runs `body`.
    fn script(&self, name: &str, body: &str) {
        let path = self.folder.path().join("bin").join(name);
        let notes = self.folder.path().join(format!("{name}.notes"));
        fs::create_dir_all(&notes).unwrap();
        let text = format!(
            "#!/bin/sh\nn='{}'\ni=$(mktemp $n/XXXXXXXX)\ncat > $i\necho x >> $n/runs\nprintf '%s\\n' \"$@\" > $n/arguments\n\
             env > $n/environment\n{body}",
            notes.display()
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn options(&self) -> ProviderOptions {
        ProviderOptions {
            config: self.folder.path().join("config.json"),
            binaries: self.folder.path().join("bin"),
            limit: self.limit,
            environment: Variables(vec![("PATH".into(), "/usr/bin:/bin".into())]),
        }
    }

    fn configure(&self, providers: &Value) -> Result<(), PlainError> {
        let config = json!({
            "kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1", "providers": providers
        });
        fs::write(self.folder.path().join("config.json"), config.to_string()).unwrap();
        self.providers.configure(Some(&self.options()))
    }

    fn note(&self, name: &str, note: &str) -> String {
        fs::read_to_string(self.folder.path().join(format!("{name}.notes")).join(note)).unwrap_or_default()
    }

    fn runs(&self, name: &str) -> usize {
        self.note(name, "runs").lines().count()
    }

    /// The plugin's inputs, one per run, unordered.
    fn questions(&self, name: &str) -> Vec<String> {
        let files = fs::read_dir(self.folder.path().join(format!("{name}.notes"))).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let questions =
            files.filter(|path| !["runs", "arguments", "environment"].iter().any(|name| path.ends_with(name)));
        questions.map(|path| fs::read_to_string(path).unwrap()).collect()
    }

    fn count(&self, family: &'static crate::metrics::Family, labels: &[&str]) -> u64 {
        let value = self.metrics.value(family, labels);
        assert!(value >= 0.0 && value.fract() == 0.0);
        format!("{value}").parse().unwrap()
    }
}

fn query(repository: &str, service_account: Option<&str>) -> CredentialQuery {
    CredentialQuery {
        repository: repository.to_owned(),
        namespace: "ns".into(),
        pod_name: "pod".into(),
        pod_uid: "puid".into(),
        service_account: service_account.map(str::to_owned),
    }
}

fn provider(name: &str, pattern: &str) -> Value {
    json!({"name": name, "matchImages": [pattern], "defaultCacheDuration": "10m", "apiVersion": V1})
}

fn answer(key_type: &str, duration: &str, auth: &Value) -> String {
    let answer = json!({
        "kind": "CredentialProviderResponse", "apiVersion": V1, "cacheKeyType": key_type, "cacheDuration": duration,
        "auth": auth
    });
    format!("cat <<'END'\n{answer}\nEND\n")
}

fn login(key: &str, user: &str) -> Value {
    json!({key: {"username": user, "password": "p"}})
}

fn shown(provided: &Provided) -> Vec<Value> {
    let credential = |tracked: &crate::credentials::TrackedCredential| {
        let CredentialKind::Basic { username, password } = &tracked.credential.kind else { panic!("another kind") };
        let account = match &tracked.source {
            CredentialSource::Node => Value::Null,
            CredentialSource::ServiceAccount(object) => {
                json!({"namespace": object.namespace, "name": object.name, "uid": object.uid})
            }
            other => panic!("{other:?}"),
        };
        json!({"username": username, "password": password.expose(), "service_account": account})
    };
    provided.credentials.iter().map(credential).collect()
}

fn users(provided: &Provided) -> Vec<String> {
    shown(provided).iter().map(|one| one["username"].as_str().unwrap().to_owned()).collect()
}

/// A script with the behaviour of a vector.
fn body(plugin: &Value) -> String {
    let text = |key: &str| plugin[key].as_str().unwrap_or_default().to_owned();
    let print = |text: String, to: &str| format!("printf '%s' '{}' {to}\n", text.replace('\'', "'\\''"));
    let lingering = plugin["background_child_keeps_stdout_open_ms"].as_u64();
    let lingering = lingering.map_or_else(String::new, |time| format!("sleep {} &\n", time as f64 / 1000.0));
    let (stdout, stderr) = (print(text("stdout"), ""), print(text("stderr"), ">&2"));
    format!("{stdout}{stderr}{lingering}exit {}\n", plugin["exit_code"])
}

#[tokio::test]
async fn every_exec_vector_of_a_provider_holds() {
    let mut cases = 0;
    for case in vectors("pull-credential-provider-exec.json") {
        let (input, expected, title) = (&case["input"], &case["expected"], &case["name"]);
        let Some(name) = input["provider"]["name"].as_str() else { continue };
        let bed = Bed::new();
        bed.script(name, &body(&input["plugin"]));
        bed.configure(&json!([input["provider"]])).unwrap_or_else(|error| panic!("{title}: {error}"));
        let set = bed.providers.set();
        let (mut runs, mut asked) = (0, Vec::new());
        let lookups = input["lookups"].as_array().unwrap();
        let results = expected["lookups"].as_array().unwrap();
        assert_eq!(lookups.len(), results.len());
        for (lookup, expected) in lookups.iter().zip(results) {
            let query = query(lookup["image"].as_str().unwrap(), lookup["service_account"].as_str());
            let answer = set.providers[0].ask(&query).await;
            let logged = answer.as_ref().err().map(ToString::to_string);
            let wanted = expected["logged"].as_str().map(|text| text.trim_start_matches("(info) ").to_owned());
            assert_eq!(logged, wanted, "{title}");
            let provided = bed.providers.collect(&query, [(&set.providers[0], answer)].into_iter());
            assert_eq!(Value::from(shown(&provided)), expected["credentials"], "{title}");
            let executed = bed.runs(name) > runs;
            assert_eq!(Some(executed), expected["plugin_executed"].as_bool(), "{title}");
            runs = bed.runs(name);
            asked.extend(expected["request_stdin"].as_str().map(str::to_owned));
        }
        let mut questions = bed.questions(name);
        questions.sort();
        asked.sort();
        assert_eq!(questions, asked, "{title}");
        if let Some(tail) = expected["argv_tail"].as_array() {
            let found: Vec<Value> = bed.note(name, "arguments").lines().map(Value::from).collect();
            assert_eq!(&found, tail, "{title}");
        }
        for variable in expected["env_contains"].as_array().into_iter().flatten() {
            let environment = bed.note(name, "environment");
            assert!(environment.lines().any(|line| Some(line) == variable.as_str()), "{title}: {environment}");
        }
        let errors = expected["plugin_errors_total"].as_u64().unwrap_or(0);
        assert_eq!(bed.count(&meters::ERRORS, &[name]), errors, "{title}");
        assert_eq!(bed.count(&meters::DURATION, &[name]), runs as u64, "{title}");
        cases += 1;
    }
    assert_eq!(cases, 29);
}

#[tokio::test]
async fn the_vector_of_the_token_request_holds() {
    let case = vectors("pull-credential-provider-exec.json").into_iter().find(|case| case["name"] == "token request");
    let expected = case.expect("there is one")["expected"]["token_request"].clone();
    let bed = Bed::new();
    bed.script("p", &answer("Image", "0s", &login("a.io", "u")));
    let mut entry = provider("p", "a.io");
    entry["tokenAttributes"] =
        json!({"serviceAccountTokenAudience": "aud", "cacheType": "Token", "requireServiceAccount": true});
    bed.configure(&json!([entry])).unwrap();
    bed.providers.provide(&query("a.io/x", Some("mysa"))).await;
    let asked = bed.cluster.asked.lock().unwrap();
    let [request] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!(expected["metadata"]["uid"], request.service_account_uid);
    assert_eq!(expected["spec"]["audiences"], json!([request.audience]));
    assert_eq!(expected["spec"]["expirationSeconds"], Value::Null, "the port has no way to ask for one");
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": request.pod_name, "uid": request.pod_uid});
    assert_eq!(expected["spec"]["boundObjectRef"], bound);
}

#[tokio::test]
async fn a_provider_is_asked_exactly_where_the_url_vectors_match() {
    let mut cases = 0;
    for case in vectors("pull-url-glob.json") {
        let [glob, target] = ["glob", "target"].map(|key| case["input"][key].as_str().unwrap());
        if !case["expected"]["error"].is_null() {
            continue;
        }
        let bed = Bed::new();
        bed.script("p", &answer("Image", "0s", &json!({})));
        bed.configure(&json!([provider("p", glob)])).unwrap_or_else(|error| panic!("{glob}: {error}"));
        bed.providers.provide(&query(target, None)).await;
        assert_eq!(bed.runs("p") == 1, case["expected"]["match"] == true, "{glob} ~ {target}");
        cases += 1;
    }
    assert_eq!(cases, 77);
}

#[tokio::test]
async fn credentials_of_all_providers_stand_in_the_order_of_their_keys_then_of_the_configuration() {
    let bed = Bed::new();
    bed.script("first", &answer("Image", "0s", &json!({"*.io": {"username": "star"}, "reg.io": {"username": "one"}})));
    bed.script(
        "second",
        &answer("Image", "0s", &json!({"reg.io": {"username": "two"}, "reg.io/a": {"username": "narrow"}})),
    );
    bed.configure(&json!([provider("first", "reg.io"), provider("second", "*.io")])).unwrap();
    let provided = bed.providers.provide(&query("reg.io/a/b", None)).await;
    assert_eq!(users(&provided), ["narrow", "one", "two", "star"]);
    assert_eq!(bed.providers.names(), ["first", "second"]);
}

#[tokio::test]
async fn the_default_registrys_credentials_are_found_under_its_old_name() {
    let bed = Bed::new();
    bed.script("p", &answer("Image", "0s", &login("https://index.docker.io/v1/", "hub")));
    bed.configure(&json!([provider("p", "docker.io")])).unwrap();
    assert_eq!(users(&bed.providers.provide(&query("docker.io/library/busybox", None)).await), ["hub"]);
}

#[tokio::test]
async fn concurrent_lookups_of_one_image_run_the_plugin_once() {
    let bed = Bed::new();
    bed.script("p", &format!("sleep 0.5\n{}", answer("Image", "0s", &login("a.io", "u"))));
    bed.configure(&json!([provider("p", "a.io")])).unwrap();
    let queries: Vec<CredentialQuery> = (0..5).map(|_| query("a.io/x", None)).collect();
    for provided in join_all(queries.iter().map(|query| bed.providers.provide(query))).await {
        assert_eq!(users(&provided), ["u"]);
    }
    assert_eq!(bed.runs("p"), 1);
}

#[tokio::test]
async fn concurrent_lookups_share_a_run_for_one_token_and_none_for_several() {
    for (renews, runs) in [(false, 1), (true, 5)] {
        let bed = Bed::with_cluster(Cluster { renews, ..Cluster::default() });
        bed.script("p", &format!("sleep 0.5\n{}", answer("Image", "5m", &login("a.io", "u"))));
        let mut entry = provider("p", "a.io");
        entry["tokenAttributes"] =
            json!({"serviceAccountTokenAudience": "aud", "cacheType": "Token", "requireServiceAccount": true});
        bed.configure(&json!([entry])).unwrap();
        let queries: Vec<CredentialQuery> = (0..5).map(|_| query("a.io/x", Some("mysa"))).collect();
        for provided in join_all(queries.iter().map(|query| bed.providers.provide(query))).await {
            assert_eq!(users(&provided), ["u"]);
        }
        assert_eq!(bed.runs("p"), runs);
    }
}

#[tokio::test]
async fn a_plugin_whose_answers_are_good_for_a_registry_runs_once_for_many_of_its_images() {
    let bed = Bed::new();
    // The requested image is the user name; the first response sets the scope guess.
    bed.script(
        "p",
        "sleep 0.3\nimage=$(sed 's/.*\"image\":\"\\([^\"]*\\)\".*/\\1/' $i)\nregistry=${image%%/*}\ntype=Registry\n\
         case $image in *only*) type=Image;; esac\n\
         printf '{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\
         \"cacheKeyType\":\"%s\",\"cacheDuration\":\"0s\",\"auth\":{\"%s\":{\"username\":\"%s\"}}}' $type $registry $image\n",
    );
    bed.configure(&json!([provider("p", "*.io")])).unwrap();
    assert_eq!(users(&bed.providers.provide(&query("a.io/first", None)).await), ["a.io/first"]);
    assert_eq!(bed.runs("p"), 1);

    let queries = ["b.io/1", "b.io/2", "b.io/3", "c.io/1"].map(|image| query(image, None));
    let provided = join_all(queries.iter().map(|query| bed.providers.provide(query))).await;
    assert_eq!(bed.runs("p"), 3, "one for each registry");
    assert_eq!(provided.iter().flat_map(users).collect::<Vec<_>>(), ["b.io/1", "b.io/1", "b.io/1", "c.io/1"]);

    // After a wrong guess, no lookup gets another image's response.
    let queries = ["d.io/only-1", "d.io/only-2", "d.io/only-3"].map(|image| query(image, None));
    let provided = join_all(queries.iter().map(|query| bed.providers.provide(query))).await;
    assert_eq!(provided.iter().flat_map(users).collect::<Vec<_>>(), ["d.io/only-1", "d.io/only-2", "d.io/only-3"]);
    assert_eq!(bed.runs("p"), 6);
}

#[tokio::test]
async fn a_failure_for_one_image_is_no_answer_for_another_that_shared_its_run() {
    let bed = Bed::new();
    let good = answer("Registry", "0s", &login("a.io", "u"));
    bed.script("p", &format!("sleep 0.3\ncase $(cat $i) in *bad*) exit 1;; esac\n{good}"));
    bed.configure(&json!([provider("p", "a.io")])).unwrap();
    // Answers are good for a registry, as the plugin says: the next images of one share a run.
    assert_eq!(users(&bed.providers.provide(&query("a.io/first", None)).await), ["u"]);
    let queries = ["a.io/bad", "a.io/good"].map(|image| query(image, None));
    let provided = join_all(queries.iter().map(|query| bed.providers.provide(query))).await;
    assert_eq!(provided.iter().map(|one| one.failures.len()).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(users(&provided[1]), ["u"]);
    assert_eq!(bed.runs("p"), 3);
}

#[tokio::test]
async fn many_images_of_many_registries_at_once_get_each_its_own() {
    let bed = Bed::new();
    bed.script(
        "p",
        "image=$(sed 's/.*\"image\":\"\\([^\"]*\\)\".*/\\1/' $i)\n\
         printf '{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\
         \"cacheKeyType\":\"Registry\",\"cacheDuration\":\"1m\",\"auth\":{\"%s\":{\"username\":\"%s\"}}}' ${image%%/*} ${image%%/*}\n",
    );
    bed.configure(&json!([provider("p", "*.io")])).unwrap();
    let queries: Vec<CredentialQuery> =
        (0..20).map(|index| query(&format!("r{}.io/image-{index}", index % 4), None)).collect();
    let provided = join_all(queries.iter().map(|query| bed.providers.provide(query))).await;
    for (query, provided) in queries.iter().zip(&provided) {
        assert_eq!(users(provided), [registry_of(&query.repository)]);
    }
    assert!(bed.runs("p") >= 4);
}

fn registry_of(repository: &str) -> &str {
    crate::credentials::registry_key(repository)
}

#[tokio::test]
async fn a_failure_is_reported_without_secrets_and_the_others_answer() {
    let bed = Bed::new();
    bed.script("broken", "cat $i >&2; echo 'password: swordfish' >&2; env >&2; exit 1");
    bed.script("good", &answer("Global", "1m", &login("reg.io", "u")));
    let mut broken = provider("broken", "reg.io");
    broken["env"] = json!([{"name": "SECRET_ACCESS", "value": "hunter2-hunter2"}]);
    broken["tokenAttributes"] =
        json!({"serviceAccountTokenAudience": "aud", "cacheType": "Token", "requireServiceAccount": true});
    bed.configure(&json!([broken, provider("good", "reg.io")])).unwrap();
    let provided = bed.providers.provide(&query("reg.io/a", Some("mysa"))).await;
    assert_eq!(users(&provided), ["u"]);
    let [failure] = provided.failures.as_slice() else { panic!("{:?}", provided.failures) };
    assert!(failure.starts_with("credential provider `broken`: "), "{failure}");
    assert!(failure.contains("error execing credential provider plugin broken for image reg.io/a: exit status 1: "));
    for secret in ["tok-mysa", "swordfish", "hunter2"] {
        assert!(!failure.contains(secret), "{failure}");
    }
    assert_eq!(bed.count(&meters::FAILURES, &["broken", "run"]), 1);
    assert_eq!(bed.runs("good"), 1);
}

#[tokio::test]
async fn errors_are_not_cached() {
    let bed = Bed::new();
    bed.script("p", &format!("[ $(wc -l < $n/runs) -gt 1 ] || exit 1\n{}", answer("Image", "1m", &login("a.io", "u"))));
    bed.configure(&json!([provider("p", "a.io")])).unwrap();
    assert_eq!(bed.providers.provide(&query("a.io/x", None)).await.failures.len(), 1);
    assert_eq!(users(&bed.providers.provide(&query("a.io/x", None)).await), ["u"]);
    assert_eq!(users(&bed.providers.provide(&query("a.io/x", None)).await), ["u"]);
    assert_eq!(bed.runs("p"), 2);
}

#[tokio::test]
async fn what_cannot_be_cached_is_used_all_the_same() {
    let bed = Bed::new();
    let long = format!("a.io/{}", "x".repeat(70_000));
    bed.script("p", &answer("Image", "1m", &login("a.io", "u")));
    bed.configure(&json!([provider("p", "a.io")])).unwrap();
    assert_eq!(users(&bed.providers.provide(&query(&long, None)).await), ["u"]);
    assert_eq!(users(&bed.providers.provide(&query(&long, None)).await), ["u"]);
    assert_eq!(bed.runs("p"), 2);
}

#[tokio::test]
async fn a_lookup_that_is_given_up_leaves_its_run_to_the_others_and_the_last_ends_it() {
    let bed = Bed::new();
    bed.script("p", &format!("echo $$ > $n/leader\nsleep 1\n{}", answer("Image", "0s", &login("a.io", "u"))));
    bed.configure(&json!([provider("p", "a.io")])).unwrap();
    let begin = || {
        let providers = Arc::clone(&bed.providers);
        tokio::spawn(async move { providers.provide(&query("a.io/x", None)).await })
    };
    let (first, second) = (begin(), begin());
    while bed.note("p", "leader").is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    first.abort();
    assert_eq!(users(&second.await.unwrap()), ["u"]);
    assert_eq!(bed.runs("p"), 1);
}

#[tokio::test]
async fn a_bad_configuration_never_replaces_a_good_one_and_an_equal_one_keeps_what_is_cached() {
    let bed = Bed::new();
    bed.script("p", &answer("Image", "1m", &login("a.io", "u")));
    let entries = json!([provider("p", "a.io")]);
    bed.configure(&entries).unwrap();
    let hash = bed.providers.set().made_of.as_ref().unwrap().0.hash.clone();
    assert_eq!(bed.count(&meters::CONFIG, &[&hash]), 1);
    bed.providers.provide(&query("a.io/x", None)).await;

    let refused = |entries: Value| bed.configure(&entries).unwrap_err().to_string();
    assert_eq!(
        refused(json!([])),
        "failed to validate credential provider config: providers: Required value: at least 1 item in plugins is required"
    );
    let binaries = bed.folder.path().join("bin");
    let none = binaries.join("none").display().to_string();
    assert_eq!(refused(json!([provider("none", "a.io")])), format!("plugin binary executable {none} did not exist"));
    fs::write(binaries.join("none"), "").unwrap();
    assert_eq!(
        refused(json!([provider("none", "a.io")])),
        format!("error inspecting binary executable {none}: permission denied")
    );
    assert_eq!(users(&bed.providers.provide(&query("a.io/x", None)).await), ["u"]);
    assert_eq!(bed.count(&meters::CONFIG, &[&hash]), 1);

    bed.configure(&entries).unwrap();
    bed.providers.provide(&query("a.io/x", None)).await;
    assert_eq!(bed.runs("p"), 1, "what was cached is still there");

    bed.configure(&json!([provider("p", "*.io")])).unwrap();
    bed.providers.provide(&query("a.io/x", None)).await;
    assert_eq!(bed.runs("p"), 2);
    assert_eq!(bed.metrics.render().matches("kubelet_credential_provider_config_info{").count(), 1);

    bed.providers.configure(None).unwrap();
    assert_eq!(bed.providers.provide(&query("a.io/x", None)).await, Provided::default());
    assert_eq!(bed.metrics.render().matches("kubelet_credential_provider_config_info{").count(), 0);
}

#[tokio::test]
async fn a_missing_folder_of_binaries_is_reported() {
    let bed = Bed::new();
    bed.configure(&json!([provider("p", "a.io")])).unwrap_err();
    let binaries = bed.folder.path().join("gone");
    let options = ProviderOptions { binaries: binaries.clone(), ..bed.options() };
    let error = bed.providers.configure(Some(&options)).unwrap_err().to_string();
    assert_eq!(error, format!("plugin binary directory {} did not exist", binaries.display()));
}

#[tokio::test]
async fn a_plugin_or_its_configuration_that_others_may_change_never_replaces_what_is_in_use() {
    let bed = Bed::new();
    bed.script("p", &answer("Image", "1m", &login("a.io", "u")));
    let entries = json!([provider("p", "a.io")]);
    bed.configure(&entries).unwrap();
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let options = bed.options();
    for (path, mode) in [
        (options.config.clone(), 0o666),
        (options.binaries.clone(), 0o777),
        (options.binaries.clone(), 0o1777),
        (options.binaries.join("p"), 0o757),
    ] {
        let before = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        set_mode(&path, mode);
        let refused = bed.providers.configure(Some(&options)).unwrap_err().to_string();
        let shown = path.display();
        let shown = format!("every user may write to `{shown}` (mode {mode:04o})\nhint: chmod go-w {shown}");
        assert!(refused.ends_with(&shown), "{refused}");
        set_mode(&path, before);
        assert_eq!(users(&bed.providers.provide(&query("a.io/app", None)).await), ["u"]);
        bed.providers.configure(Some(&options)).unwrap();
    }
}

#[tokio::test]
async fn a_node_without_a_cluster_fails_the_providers_that_want_service_accounts() {
    let bed = Bed::new();
    bed.script("p", "exit 1");
    let mut entry = provider("p", "a.io");
    entry["tokenAttributes"] =
        json!({"serviceAccountTokenAudience": "aud", "cacheType": "Token", "requireServiceAccount": true});
    bed.configure(&json!([entry])).unwrap();
    let alone = Providers::new(Arc::new(Standalone), Arc::clone(&bed.metrics));
    alone.configure(Some(&bed.options())).unwrap();
    let provided = alone.provide(&query("a.io/x", Some("mysa"))).await;
    assert_eq!(
        provided.failures[0].split_once(": ").unwrap().1,
        "failed to get service account: cannot get ServiceAccounts when kubelet is in standalone mode"
    );
    assert_eq!(alone.provide(&query("a.io/x", None)).await, Provided::default());
    assert_eq!(bed.runs("p"), 0);
}
