"""How a program reaches a test server: environment variables and storage options."""

from __future__ import annotations

import os
from typing import Any

ACCESS_KEY = "test"
SECRET_KEY = "testsecret"

# No credentials, profiles or metadata services of the machine may take part in a test.
HERMETIC = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


def s3_environment(url: str) -> dict[str, str]:
    """The variables by which a program reaches the S3 server at ``url``."""
    return {
        **HERMETIC,
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def s3_options(url: str) -> dict[str, Any]:
    """The options of s3fs by which it reaches the S3 server at ``url``."""
    return {"key": ACCESS_KEY, "secret": SECRET_KEY, "endpoint_url": url}


def gcs_environment(url: str) -> dict[str, str]:
    """The variables by which a program reaches the GCS server at ``url``, with the anonymous token."""
    return {
        **HERMETIC,
        "STORAGE_EMULATOR_HOST": url,
        "FSSPEC_GS_TOKEN": "anon",
        # gcsfs would ask the real service for the bucket's layout, a minute each time.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
