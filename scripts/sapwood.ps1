# Run Sapwood's command line from a clone. The virtual environment is made on first use.
#   SAPWOOD_VENV  where it is, else .venv in the clone
#   PYTHON        with which Python it is made, else python
$ErrorActionPreference = "Stop"

$root = Split-Path -Parent $PSScriptRoot
$venv = if ($env:SAPWOOD_VENV) { $env:SAPWOOD_VENV } else { Join-Path $root ".venv" }
# $IsLinux and $IsMacOS are unknown, and so false, in Windows PowerShell 5.
if ($IsLinux -or $IsMacOS) {
    $bin = Join-Path $venv "bin"
    $command = Join-Path $bin "sapwood"
    $interpreter = Join-Path $bin "python"
} else {
    $bin = Join-Path $venv "Scripts"
    $command = Join-Path $bin "sapwood.exe"
    $interpreter = Join-Path $bin "python.exe"
}

# The command is there when the installation is complete, and not before.
if (-not (Test-Path $command)) {
    $python = if ($env:PYTHON) { $env:PYTHON } else { "python" }
    & $python -c "import sys; sys.exit(sys.version_info < (3, 11))"
    if ($LASTEXITCODE -ne 0) {
        [Console]::Error.WriteLine("Sapwood needs Python 3.11 or newer: set PYTHON to one")
        exit 1
    }
    [Console]::Error.WriteLine("installing Sapwood into $venv")
    & $python -m venv $venv
    if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }
    & $interpreter -m pip install --quiet --disable-pip-version-check --editable $root
    if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }
}

& $interpreter -m sapwood @args
exit $LASTEXITCODE
