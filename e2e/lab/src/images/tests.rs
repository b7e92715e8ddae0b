use super::*;

fn image(program: &Path) -> Image {
    Image::of_static("example.org/some/program:1", "program", program).unwrap()
}

/// The files' times, owners and locations have no effect.
#[test]
fn equal_programs_give_equal_archives() {
    let dir = tempfile::tempdir().unwrap();
    let mut archives = Vec::new();
    for (place, age) in [("here", 0), ("there", 1_000_000)] {
        let program = dir.path().join(place);
        fs::write(&program, "a program").unwrap();
        let then = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(age);
        fs::File::options().write(true).open(&program).unwrap().set_modified(then).unwrap();
        let (path, written) = image(&program).write(&dir.path().join(format!("to-{place}"))).unwrap();
        archives.push((written, fs::read(path).unwrap()));
    }
    assert_eq!(archives[0], archives[1]);
    let other = dir.path().join("other");
    fs::write(&other, "another program").unwrap();
    let (_, other) = image(&other).write(dir.path()).unwrap();
    assert_ne!(other.digest, archives[0].0.digest);
}

#[test]
fn entries_are_sorted_and_have_their_directories() {
    let mut layer = ImageLayer::default();
    layer.file("usr/bin/b", 0o755, b"b".to_vec());
    layer.link("bin", "usr/bin");
    layer.file("usr/bin/a", 0o644, Vec::new());
    let tar = layer.tar().unwrap();
    let mut archive = tar::Archive::new(tar.as_slice());
    let entries = archive.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        let header = entry.header();
        assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (0, 0, 0));
        (entry.path().unwrap().display().to_string(), header.mode().unwrap())
    });
    let expected =
        [("bin", 0o777), ("usr/", 0o755), ("usr/bin/", 0o755), ("usr/bin/a", 0o644), ("usr/bin/b", 0o755)];
    let expected: Vec<(String, u32)> = expected.map(|(path, mode)| (path.to_owned(), mode)).into();
    assert_eq!(entries.collect::<Vec<_>>(), expected);
}
