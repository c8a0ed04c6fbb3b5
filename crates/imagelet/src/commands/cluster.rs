//! The commands that use the API server of a cluster, and no node: `prefetch` and `controller`.

use std::{path::Path, process::ExitCode, sync::Arc, time::SystemTime};

use futures_util::future::OptionFuture;
use imagelet_core::{metrics::Metrics, printable::printable, retry_wait::random};
use imagelet_kube::{ApiAccess, ApiError, CRDS, NodeCounts, PrefetchApi, PrefetchController, SetDocument, SetRow};
use imagelet_node::{
    config::{Environment, HttpSettings},
    failure::Failure,
    http::{self, HttpAccess, MeasuredController},
};
use serde_json::json;

use crate::{
    cli::{ClusterAccess, ControllerArgs, PrefetchCommand},
    commands::pull::read_manifest,
    manifests::{Document, documents},
    output::{Format, Table, exit_code, or_dash, print, print_failure},
    sources::Context,
};

const FILE_LENGTH_MAX: usize = 1 << 20;

pub(super) async fn run_prefetch(command: PrefetchCommand, context: &Context) -> Result<ExitCode, Failure> {
    let format = context.global.output;
    let api = |given| access(given, &context.environment).map(|access| PrefetchApi { client: access.client() });
    let not_found = |what: &str| Err(Failure::new("NotFound", format!("no {}", printable(what))));
    match command {
        PrefetchCommand::Crds => Ok(print(Format::Table, &(), |out| out.write_all(CRDS.as_bytes()))?),
        PrefetchCommand::Apply { files, namespace, access } => {
            // If a file is invalid, the cluster gets no set: all files are checked before the first set is sent.
            let sets = files.iter().map(|file| read(file, &namespace)).collect::<Result<Vec<_>, Failure>>()?.concat();
            apply(&api(&access)?, &sets, format).await
        }
        PrefetchCommand::Status { name, namespace, access } => {
            let rows = api(&access)?.sets(namespace.as_deref(), name.as_deref()).await;
            let rows = rows.map_err(|error| failed(&error))?;
            if let (Some(name), true) = (&name, rows.is_empty()) {
                return not_found(&format!("set `{name}`"));
            }
            Ok(print(format, &json!({"sets": rows}), |out| {
                table(&rows, format).write(out).and_then(|()| failures(&rows, out))
            })?)
        }
        PrefetchCommand::Rm { name, namespace, cluster, access } => {
            let namespace = Some(namespace.as_str()).filter(|_| !cluster);
            let shown = namespace.map(|namespace| format!("ImageSet {namespace}/{name}"));
            let shown = shown.unwrap_or_else(|| format!("ClusterImageSet {name}"));
            if !api(&access)?.remove(namespace, &name).await.map_err(|error| failed(&error))? {
                return not_found(&shown);
            }
            Ok(print(format, &json!({"removed": [shown]}), |out| writeln!(out, "{} removed", printable(&shown)))?)
        }
    }
}

async fn apply(api: &PrefetchApi, sets: &[SetDocument], format: Format) -> Result<ExitCode, Failure> {
    let (mut applied, mut failed_sets) = (Vec::new(), Vec::new());
    for set in sets {
        match api.apply(set).await {
            Ok(()) => applied.push(set.name()),
            Err(error) => {
                let failure = failed(&error);
                print_failure(&Failure::new(&failure.reason, format!("could not apply {}: {failure}", set.name())));
                failed_sets.push(json!({"set": set.name(), "failure": failure}));
            }
        }
    }
    let document = json!({"applied": applied, "failures": failed_sets});
    print(format, &document, |out| applied.iter().try_for_each(|name| writeln!(out, "{name} applied")))?;
    Ok(exit_code(!failed_sets.is_empty()))
}

fn read(file: &Path, namespace: &str) -> Result<Vec<SetDocument>, Failure> {
    let text = read_manifest(file, FILE_LENGTH_MAX)?;
    let shown = printable(&file.display().to_string());
    let documents = documents(&text);
    if documents.is_empty() {
        return Err(Failure::invalid(format!("`{shown}` has no set")));
    }
    let set = |(at, Document { line, read, .. })| {
        let invalid = |why| Failure::invalid(format!("`{shown}`: the document in line {line} {why}"));
        SetDocument::read(read.map_err(invalid)?, namespace).map_err(|error| {
            let message = format!("`{shown}`, document {}: {error}", at + 1);
            Failure::invalid(message).or_hint("`imagelet help prefetch` describes the fields")
        })
    };
    documents.into_iter().enumerate().map(set).collect()
}

fn failed(error: &ApiError) -> Failure {
    let failure = |reason| Failure::new(reason, error.to_string());
    match error.code() {
        Some(404) => failure("NotFound").or_hint("install the kinds: `imagelet prefetch crds | kubectl apply -f -`"),
        Some(401 | 403) => failure("Forbidden").or_hint("`imagelet help prefetch` lists the rights"),
        Some(_) => failure("Failed"),
        None => failure("Unavailable"),
    }
}

fn table(rows: &[SetRow], format: Format) -> Table {
    let header = ["KIND", "NAMESPACE", "NAME", "WANTED", "READY", "PULLING", "FAILED", "WAITING", "STATE"];
    let rows = rows.iter().map(|SetRow { kind, namespace, name, nodes, complete, message, .. }| {
        let NodeCounts { wanted, ready, pulling, failed, waiting } = nodes;
        let [wanted, ready, pulling, failed, waiting] =
            [wanted, ready, pulling, failed, waiting].map(ToString::to_string);
        let state = if *complete { "complete".to_owned() } else { message.clone() };
        let (kind, namespace) = ((*kind).to_owned(), or_dash(namespace).to_owned());
        [kind, namespace, name.clone(), wanted, ready, pulling, failed, waiting, state]
    });
    Table::new(header).rows(rows).wide(format == Format::Wide)
}

fn failures(rows: &[SetRow], out: &mut dyn std::io::Write) -> std::io::Result<()> {
    for row in rows.iter().filter(|row| !row.failures.is_empty()) {
        let place = if row.namespace.is_empty() { row.name.clone() } else { format!("{}/{}", row.namespace, row.name) };
        writeln!(out, "\nFailures of {} {place}:", row.kind)?;
        row.failures.iter().try_for_each(|failure| writeln!(out, "  {}", printable(failure)))?;
    }
    Ok(())
}

pub(super) async fn run_controller(arguments: ControllerArgs, environment: &Environment) -> Result<ExitCode, Failure> {
    let ControllerArgs { namespace, identity, http: address, http_token_file: token_file, health, access: given } =
        arguments;
    let access = access(&given, environment)?;
    let settings = HttpSettings { address: address.clone(), token_file, ..HttpSettings::default() };
    let policy = HttpAccess::load(&settings)?;
    let listener = address.as_deref().map(|address| http::bind(address, policy.has_token()));
    let listener = OptionFuture::from(listener).await.transpose()?;
    let for_probes = OptionFuture::from(health.map(http::bind_all)).await.transpose()?;
    // Connects first, because an invalid kubeconfig must end the command. The controller would only log this error.
    access.connect().await?;
    let identity = identity.unwrap_or_else(own_identity);
    tracing::info!(identity, namespace, http = address, "the controller of prefetch waits for its lease");
    let (metrics, started_at) = (Arc::new(Metrics::new()), SystemTime::now());
    let controller = Arc::new(PrefetchController::new(access.client(), &namespace, &identity, Arc::clone(&metrics)));
    let measured = MeasuredController { controller: Arc::clone(&controller), metrics, started_at };
    let serving = listener.map(|listener| http::serve_controller(listener, measured, policy));
    let probed = for_probes.map(|listener| http::serve_health(listener, Arc::clone(&controller)));
    tokio::join!(controller.run(), OptionFuture::from(serving), OptionFuture::from(probed));
    Ok(ExitCode::SUCCESS)
}

/// The host name and a random number. Without the number, two controllers on one host would both hold the lease.
fn own_identity() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}_{:016x}", random())
}

fn access(given: &ClusterAccess, environment: &Environment) -> Result<ApiAccess, Failure> {
    if let Some(path) = &given.kubeconfig {
        return Ok(ApiAccess::Kubeconfig(std::path::absolute(path)?));
    }
    if environment.is_in_cluster() {
        return Ok(ApiAccess::InCluster);
    }
    let of_user = environment.folders.home.as_ref().map(|home| home.join(".kube/config")).filter(|path| path.exists());
    of_user.map(ApiAccess::Kubeconfig).ok_or_else(|| {
        Failure::invalid("there is no kubeconfig, and imagelet does not run in a pod")
            .or_hint("use `--kubeconfig FILE`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_controller_has_an_identity_of_its_own_that_names_its_host() {
        let [one, other] = [own_identity(), own_identity()];
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert_ne!(one, other);
        assert!(one.starts_with(&format!("{host}_")), "{one}");
    }
}
