//! TLS of the metrics port and of the export: certificates from files, read again when they change.
//!
//! Owns the files' contents. A changed file that cannot be used is reported, and the old certificate stays.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{config::TlsConfig, log::Log};

/// How often the files' times are compared.
const CHECK: Duration = Duration::from_secs(10);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the certificate {path}: {why}")]
pub struct TlsError {
    path: PathBuf,
    why: String,
}

impl TlsError {
    fn new(path: &Path, why: &impl ToString) -> Self {
        Self { path: path.to_owned(), why: why.to_string() }
    }
}

/// A value made from files, and made again when they change.
struct Kept<K, V>(Mutex<Option<Made<K, V>>>);

struct Made<K, V> {
    key: K,
    /// When the files were written, as of the last reading.
    written: Vec<Option<SystemTime>>,
    checked: Instant,
    value: V,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<K: Clone + PartialEq, V: Clone> Kept<K, V> {
    /// The value of this key, read again if the files changed since, but not more often than each [`CHECK`]. Without
    /// files to compare it is always read again. `reread` receives the result of such a reading: the old value stays if
    /// it failed.
    ///
    /// # Errors
    ///
    /// If the first reading of this key fails.
    fn get(
        &self,
        key: &K,
        files: &[&Path],
        now: Instant,
        read: impl Fn() -> Result<V, TlsError>,
        reread: impl FnOnce(Result<(), TlsError>),
    ) -> Result<V, TlsError> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = kept.as_mut().filter(|made| made.key == *key) {
            if now.duration_since(made.checked) >= CHECK {
                made.checked = now;
                let written = written(files);
                if files.is_empty() || written != made.written {
                    made.written = written;
                    reread(read().map(|value| made.value = value));
                }
            }
            return Ok(made.value.clone());
        }
        // Before the reading: a file that changes meanwhile is read again.
        let written = written(files);
        let value = read()?;
        *kept = Some(Made { key: key.clone(), written, checked: now, value: value.clone() });
        Ok(value)
    }
}

impl<K: std::fmt::Debug, V> std::fmt::Debug for Kept<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_tuple("Kept").field(&kept.as_ref().map(|made| &made.key)).finish()
    }
}

fn written(files: &[&Path]) -> Vec<Option<SystemTime>> {
    // A Secret's files are links that change with each version.
    files.iter().map(|path| fs::metadata(path).and_then(|meta| meta.modified()).ok()).collect()
}

/// The certificate in use.
#[derive(Debug, Default)]
pub(crate) struct Certificate(Kept<TlsConfig, TlsAcceptor>);

impl Certificate {
    /// The certificate of this configuration.
    ///
    /// # Errors
    ///
    /// If there is no usable certificate at all.
    pub(crate) fn acceptor(&self, config: &TlsConfig, log: &Log) -> Result<TlsAcceptor, TlsError> {
        let files = [config.certificate.as_path(), config.key.as_path()];
        self.0.get(
            config,
            &files,
            Instant::now(),
            || acceptor(config),
            |reread| match reread {
                Ok(()) => log.info("tls", &format!("reread {}", config.certificate.display())),
                Err(error) => log.error("tls", &format!("{error}; the old one stays")),
            },
        )
    }
}

/// The certificates of authorities that the export trusts.
#[derive(Debug, Default)]
pub(crate) struct Trust(Kept<Option<PathBuf>, TlsConnector>);

impl Trust {
    /// A client that trusts the certificates in this file, or the system's.
    ///
    /// # Errors
    ///
    /// If there is no usable certificate at all.
    pub(crate) fn connector(&self, ca: Option<&Path>, log: &Log) -> Result<TlsConnector, TlsError> {
        let files: Vec<&Path> = ca.into_iter().collect();
        let key = ca.map(Path::to_owned);
        self.0.get(
            &key,
            &files,
            Instant::now(),
            || connector(ca),
            |reread| match (reread, ca) {
                (Ok(()), Some(path)) => log.info("tls", &format!("reread {}", path.display())),
                (Ok(()), None) => {}
                (Err(error), _) => log.error("tls", &format!("{error}; the old ones stay")),
            },
        )
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn acceptor(config: &TlsConfig) -> Result<TlsAcceptor, TlsError> {
    let chain = certificates(&config.certificate)?;
    let failed = |error: &dyn std::fmt::Display| TlsError::new(&config.key, &error.to_string());
    let key = PrivateKeyDer::from_pem_file(&config.key).map_err(|error| failed(&error))?;
    let server = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| failed(&error))?;
    Ok(TlsAcceptor::from(Arc::new(server)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| TlsError::new(path, &error))?;
    if chain.is_empty() {
        return Err(TlsError::new(path, &"the file has no certificate"));
    }
    Ok(chain)
}

fn connector(ca: Option<&Path>) -> Result<TlsConnector, TlsError> {
    let mut roots = RootCertStore::empty();
    let place = ca.unwrap_or(Path::new("the system's"));
    let trusted = match ca {
        Some(path) => certificates(path)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _) = roots.add_parsable_certificates(trusted);
    if added == 0 {
        return Err(TlsError::new(place, &"there is no usable certificate"));
    }
    let client = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::new(place, &error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(client)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_file_is_read_again_only_when_it_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        fs::write(&path, "first").unwrap();
        let (kept, reads, failed) = (Kept::default(), Cell::new(0), Cell::new(0));
        let start = Instant::now();
        let get = |key: &str, files: &[&Path], seconds| {
            let read = || {
                reads.set(reads.get() + 1);
                let text = fs::read_to_string(&path).unwrap_or_default();
                if text.is_empty() { Err(TlsError::new(&path, &"empty")) } else { Ok(text) }
            };
            let reread = |result: Result<(), TlsError>| failed.set(failed.get() + u32::from(result.is_err()));
            let now = start + Duration::from_secs(seconds);
            kept.get(&key.to_owned(), files, now, read, reread).unwrap()
        };
        let write = |text: &str, seconds| {
            let file = fs::File::create(&path).unwrap();
            std::io::Write::write_all(&mut &file, text.as_bytes()).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        assert_eq!(
            (get("a", &[&path], 0), get("a", &[&path], 60), reads.get()),
            ("first".into(), "first".into(), 1)
        );
        write("second", 1);
        assert_eq!(get("a", &[&path], 65), "first", "it was compared 5 s ago");
        assert_eq!((get("a", &[&path], 70), reads.get()), ("second".into(), 2));
        write("", 2);
        assert_eq!((get("a", &[&path], 80), failed.get()), ("second".into(), 1));
        assert_eq!((get("a", &[&path], 90), reads.get()), ("second".into(), 3));
        write("third", 3);
        assert_eq!(get("b", &[], 90), "third", "another name is read at once");
        assert_eq!((get("b", &[], 95), reads.get()), ("third".into(), 4));
        assert_eq!((get("b", &[], 100), reads.get()), ("third".into(), 5));
    }
}
