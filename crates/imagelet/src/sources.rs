//! The sources of the configuration for a command line: files, flags and variables.

use std::path::PathBuf;

use imagelet_node::{
    config::{Environment, Settings, Sources},
    failure::Failure,
};

use crate::cli::{Global, ServeArgs};

#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) global: Global,
    pub(crate) environment: Environment,
}

pub(crate) fn daemon_settings(arguments: &ServeArgs, context: &Context) -> Result<Settings, Failure> {
    let sources = sources(arguments, context)?;
    for warning in arguments.ignored_options(sources.has_node()).chain(sources.exposed_password()) {
        tracing::warn!("{warning}");
    }
    Ok(sources.settings()?)
}

pub(crate) fn command_sources(context: &Context) -> Result<Sources, Failure> {
    sources(&ServeArgs { config: context.environment.config.clone(), ..ServeArgs::default() }, context)
}

pub(crate) fn sources(arguments: &ServeArgs, Context { global, environment }: &Context) -> Result<Sources, Failure> {
    let mut sources = Sources::new(environment.clone());
    let store = global.store.as_ref();
    if let Some(file) = &arguments.kubelet_config {
        sources.add_kubelet_file(file)?;
    }
    if let Some(folder) = &arguments.kubelet_config_dir {
        sources.add_kubelet_folder(folder)?;
    }
    if let Some(file) = &arguments.config {
        sources.add_file(file)?;
    }
    let absolute = |path: Option<&PathBuf>| -> Result<Option<String>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let text = std::path::absolute(path)?.into_os_string().into_string();
        text.map(Some).map_err(|path| Failure::invalid(format!("`{}` is not UTF-8", path.display())))
    };
    if let Some(store) = store
        && arguments.runtime_endpoint.is_none()
        && arguments.config.is_some()
    {
        if let Some((endpoint, place)) = sources.runtime_of_file().filter(|_| !global.store_wins) {
            let store = store.display();
            let message = format!("IMAGELET_STORE names the store `{store}`, and {place} the runtime `{endpoint}`");
            let hint = format!("unset IMAGELET_STORE, or give `--store {store}` to use that store without the runtime");
            return Err(Failure::invalid(message).or_hint(&hint));
        }
        sources.add_flag("--store", "imageService.cri.endpoint", "");
    }
    let provider_config = absolute(arguments.image_credential_provider_config.as_ref())?;
    let provider_binaries = absolute(arguments.image_credential_provider_bin_dir.as_ref())?;
    let own = [
        ("--socket", "socket", absolute(arguments.socket.as_ref())?),
        ("--http", "http.address", arguments.http.clone()),
        ("--store", "store.directory", absolute(store)?),
        ("--image-credential-provider-config", "imageCredentialProviderConfigPath", provider_config),
        ("--image-credential-provider-bin-dir", "imageCredentialProviderBinDir", provider_binaries),
        ("--runtime-endpoint", "imageService.cri.endpoint", arguments.runtime_endpoint.clone()),
        ("--node-name", "kubernetes.nodeName", arguments.node_name.clone()),
    ];
    let own = own.into_iter().filter_map(|(flag, key, value)| Some((flag, key, value?.into())));
    for (flag, key, value) in own.chain(arguments.kubelet.iter().cloned()) {
        sources.add_flag(flag, key, value);
    }
    // A kubelet's unit may pass its `--kubeconfig`, so the flag has an effect only if a flag or a file names the node.
    if let Some(kubeconfig) = absolute(arguments.kubeconfig.as_ref())?.filter(|_| sources.has_node()) {
        sources.add_flag("--kubeconfig", "kubernetes.kubeconfig", kubeconfig);
    }
    Ok(sources)
}
